//! Words which have a better one.
use crate::Breach;
use crate::source::Source;

/// A word, where it is banned, and what stands there instead.
struct Rule {
    /// Tokens, separated by spaces.
    words: &'static str,
    /// Whether a file (by its path from the root) is under the rule.
    banned_in: fn(&str) -> bool,
    instead: &'static str,
}

const RULES: [Rule; 13] = [
    Rule {
        words: ". unwrap (",
        banned_in: everywhere,
        instead: "`?`, or `expect(\"why it cannot fail\")` for a promise of ours",
    },
    Rule { words: "todo !", banned_in: everywhere, instead: "write it, or refuse it with a typed error" },
    Rule { words: "unimplemented !", banned_in: everywhere, instead: "a typed error" },
    Rule { words: "dbg !", banned_in: everywhere, instead: "tracing" },
    Rule {
        words: "as usize",
        banned_in: on_the_wire,
        instead: "`usize::from`, `usize::try_from` behind a checked bound, or a `const fn` which widens: it is a peer's number",
    },
    Rule { words: "Mutex", banned_in: data_path, instead: "one owner; share by message" },
    Rule { words: "RwLock", banned_in: data_path, instead: "one owner; share by message" },
    Rule { words: "Instant :: now", banned_in: pure, instead: "the time handed in with the event" },
    Rule { words: "SystemTime :: now", banned_in: pure, instead: "the time handed in with the event" },
    Rule { words: "thread :: sleep", banned_in: reactors, instead: "a deadline" },
    Rule { words: "thread :: spawn", banned_in: pure, instead: "the reactor" },
    Rule {
        words: "HashMap",
        banned_in: pure,
        instead: "a slab, an index or a BTreeMap: the order must repeat",
    },
    Rule { words: "HashSet", banned_in: pure, instead: "a BTreeSet: the order must repeat" },
];

/// Files named so say nothing about what they hold.
const NAMELESS: [&str; 6] = ["util", "utils", "helper", "helpers", "manager", "misc"];

pub(crate) fn breaches(source: &Source) -> Vec<Breach> {
    let rules = RULES.iter().filter(|rule| (rule.banned_in)(&source.path));
    let words = rules.flat_map(|rule| {
        let spared =
            |line: &usize| source.is_test(*line) || rule.words == "as usize" && source.is_constant(*line);
        let lines = source.lines_with(rule.words).into_iter().filter(move |line| !spared(line));
        lines.map(|line| {
            let written = rule.words.replace(' ', "").replace("asusize", "as usize");
            Breach::at(
                &source.path,
                line,
                format_args!("`{written}` is banned here; instead: {}", rule.instead),
            )
        })
    });
    let mut parts = source.path.trim_end_matches(".rs").split('/');
    let nameless = parts.any(|part| NAMELESS.contains(&part));
    let name = nameless.then(|| Breach::at(&source.path, 1, "name the file after what it holds"));
    words.chain(name).collect()
}

/// What no file of any kind may say.
pub(crate) fn text_breaches(path: &str, text: &str) -> Vec<Breach> {
    // Put together here, so that this file does not break its own rule.
    let later = [["TO", "DO"], ["FIX", "ME"]].map(|halves| halves.concat());
    let machine = [["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"]].map(|halves| halves.concat());
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if later.iter().any(|word| line.contains(word)) {
            found.push(Breach::at(path, number + 1, "do it now, or file an issue"));
        }
        if machine.iter().any(|word| line.contains(word)) {
            found.push(Breach::at(
                path,
                number + 1,
                "a path of one machine; name a variable or a relative path",
            ));
        }
    }
    found
}

fn everywhere(_: &str) -> bool {
    true
}

/// Where a peer's numbers are parsed.
fn on_the_wire(path: &str) -> bool {
    ["common/src/nvme", "common/src/iwarp"].iter().any(|place| path.starts_with(place))
}

/// Protocol machines and what the simulator runs: events and a time in, actions out.
fn pure(path: &str) -> bool {
    const PURE: [&str; 11] = [
        "common/src/nvme",
        "common/src/iwarp",
        "common/src/verbs",
        "common/src/memory",
        "common/src/provider/sim",
        "common/src/provider/soft",
        "target/src/controller",
        "target/src/catalog",
        "target/src/qpair",
        "target/src/poll_group",
        "initiator/src/host",
    ];
    PURE.iter().any(|place| path.starts_with(place))
}

/// The target outside its control thread, which shares by message.
fn data_path(path: &str) -> bool {
    pure(path) || (path.starts_with("target/src/") && !path.starts_with("target/src/control"))
}

/// Whatever runs on a reactor's thread.
fn reactors(path: &str) -> bool {
    data_path(path) || path.starts_with("common/src/")
}
