//! What is changed is changed, and nothing else: comments, order and way of writing stay.
use super::*;

const NQN: &str = "nqn.2014-08.org.example:a";

const FILE: &str = r#"# Our target.
listen = ["127.0.0.1:4420"] # loopback
control = "/run/x.sock"

# The fast one.
[[subsystem]]
nqn = "nqn.2014-08.org.example:a"
allow-hosts = [
    "nqn.2014-08.org.example:h1", # the database
    "nqn.2014-08.org.example:h2",
]

[[subsystem.namespace]] # first
null = "1GiB"

[[subsystem.namespace]]
null = "2GiB" # second

# The slow one.
[[subsystem]]
nqn = "nqn.2014-08.org.example:b"
allow-any-host = true
namespace = [{ null = "1MiB" }, { ram = 4096 }]
"#;

fn draft(text: &str) -> Draft {
    Draft::new(Path::new("target.toml"), text, Some(nqn("made"))).unwrap()
}

fn nqn(name: &str) -> Nqn {
    format!("nqn.2014-08.org.example:{name}").parse().unwrap()
}

/// Lines which are gone, and lines which are new.
fn difference(before: &str, draft: Draft) -> (Vec<String>, Vec<String>) {
    let after = draft.into_parts().0;
    let without = |one: &str, other: &str| -> Vec<String> {
        one.lines().filter(|line| !other.lines().any(|same| same == *line)).map(str::to_owned).collect()
    };
    (without(before, &after), without(&after, before))
}

fn name(text: &str) -> BdevName {
    text.parse().unwrap()
}

#[test]
fn a_subsystem_comes_and_goes_and_comments_stay() {
    let mut one = draft(FILE);
    one.add_subsystem(&nqn("c"), vec![("serial", "C".into())]).unwrap();
    assert!(matches!(one.add_subsystem(&nqn("c"), Vec::new()), Err(DraftError::SubsystemThere(_))));
    one.add_bdev(&name("M0"), vec![("ram", size(1 << 20)), ("lba", 512.into())]).unwrap();
    let nsid = one.add_namespace(&nqn("c"), None, vec![("bdev", "M0".into())]).unwrap();
    assert_eq!((nsid, one.namespace(&nqn("c"), 1).unwrap().backing.name()), (1, "ram:1048576".into()));
    let (gone, new) = difference(FILE, one.clone());
    assert_eq!(gone, [""; 0]);
    assert_eq!(
        new,
        [
            "nqn = \"nqn.2014-08.org.example:c\"",
            "serial = \"C\"",
            "nsid = 1",
            "bdev = \"M0\"",
            "[[bdev]]",
            "name = \"M0\"",
            "ram = \"1MiB\"",
            "lba = 512"
        ]
    );
    one.remove_bdev("M0").unwrap();
    assert!(one.subsystem(&nqn("c")).unwrap().namespaces.is_empty(), "it went with its bdev");
    one.remove_subsystem(&nqn("c")).unwrap();
    assert_eq!(one.into_parts().0, FILE);
}

#[test]
fn numbers_stay_though_a_namespace_before_goes() {
    let mut one = draft(FILE);
    one.remove_namespace(&nqn("a"), 1).unwrap();
    one.remove_namespace(&nqn("b"), 1).unwrap();
    let numbers = |one: &Draft, name| -> Vec<u32> {
        one.subsystem(&nqn(name)).unwrap().namespaces.iter().map(|one| one.nsid).collect()
    };
    assert_eq!((numbers(&one, "a"), numbers(&one, "b")), (vec![2], vec![2]));
    assert_eq!(one.add_namespace(&nqn("b"), None, vec![("null", size(4096))]).unwrap(), 1);
    assert!(matches!(one.remove_namespace(&nqn("b"), 9), Err(DraftError::NoNamespace(_, 9))));
    assert!(one.clone().into_parts().0.contains("null = \"2GiB\" # second"));
    assert!(one.into_parts().0.contains("{ nsid = 1, null = \"4KiB\" }]"));
}

#[test]
fn hosts_and_listeners_change_in_their_lists() {
    let mut one = draft(FILE);
    one.admit(&nqn("a"), Some(&[nqn("h1"), nqn("h3")])).unwrap();
    let (gone, new) = difference(FILE, one.clone());
    assert_eq!(gone, ["    \"nqn.2014-08.org.example:h2\","]);
    assert_eq!(new, ["    \"nqn.2014-08.org.example:h3\","]);
    assert!(one.clone().into_parts().0.contains("h1\", # the database"));
    one.admit(&nqn("a"), None).unwrap();
    one.listen(&nqn("a"), &["127.0.0.1:4421".into()]).unwrap();
    let access = |state| ((Address::from(([127, 0, 0, 1], 4421)), 1), state);
    let (at, state) = access(Some(AnaState::INACCESSIBLE));
    one.set_access(&nqn("a"), at, state).unwrap();
    one.set_access(&nqn("a"), at, Some(AnaState::PERSISTENT_LOSS)).unwrap();
    let subsystem = one.subsystem(&nqn("a")).unwrap();
    assert_eq!((subsystem.access.len(), subsystem.access[0].state), (1, AnaState::PERSISTENT_LOSS));
    let refused = one.listen(&nqn("a"), &[]).unwrap_err();
    assert!(refused.to_string().contains("no listener"), "{refused}");
    one.set_access(&nqn("a"), at, None).unwrap();
    one.listen(&nqn("a"), &[]).unwrap();
    assert_eq!(one.subsystem(&nqn("a")).unwrap().listen, Some(Vec::new()));
}

#[test]
fn a_host_is_forgotten_wherever_it_is_named() {
    let text = FILE.replace("[[subsystem.namespace]] # first\n", &format!("[[subsystem.host]]\nnqn = \"{0}:h2\"\nlimit = {{ iops = 5 }}\n\n[[subsystem.namespace]] # first\nallow-hosts = [\"{0}:h1\", \"{0}:h2\"]\n", "nqn.2014-08.org.example"));
    let mut one = draft(&text);
    one.admit(&nqn("a"), Some(&[nqn("h1")])).unwrap();
    one.forget_host(&nqn("a"), &nqn("h2")).unwrap();
    assert!(!one.clone().into_parts().0.contains(":h2"));
    let last = one.forget_host(&nqn("a"), &nqn("h1")).unwrap_err();
    assert!(last.to_string().contains("the list is empty"), "{last}");
}

#[test]
fn a_subsystem_without_a_name_gets_it_beside_another() {
    let mut one = draft("control = \"x\"\n[[subsystem]]\n[[subsystem.namespace]]\nnull = 4096\n");
    one.limit_namespace(&nqn("made"), 1, &Limit { iops: std::num::NonZeroU64::new(7), ..Limit::default() })
        .unwrap();
    one.add_subsystem(&nqn("b"), Vec::new()).unwrap();
    let (text, config) = one.into_parts();
    assert_eq!(config.subsystems[0].nqn, Some(nqn("made")));
    assert_eq!(config.subsystems[0].namespaces[0].limit.iops.unwrap().get(), 7);
    assert!(text.contains("limit = { iops = 7 }"), "{text}");
}

#[test]
fn what_would_be_wrong_changes_nothing() {
    let mut one = draft(FILE);
    let wrong = one.add_bdev(&name("M0"), vec![("ram", 5.into())]).unwrap_err();
    assert!(wrong.to_string().contains("4096-byte blocks"), "{wrong}");
    assert!(one.add_namespace(&nqn("a"), Some(4000), vec![("null", size(4096))]).is_err());
    assert!(matches!(one.remove_subsystem(&nqn("x")), Err(DraftError::NoSubsystem(_))));
    assert_eq!(one.into_parts().0, FILE);
    assert_eq!(NQN, nqn("a").as_str());
}
