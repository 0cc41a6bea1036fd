//! A file and flags give the same value; whatever is wrong is told with its place.
use clap::Parser;

use ironside_common::nvme::log_page::AnaState;

use super::*;
use crate::control::cli::{Cli, Command};
use crate::limits::Resource;

fn from_flags(flags: &str) -> Result<Config, ConfigError> {
    let arguments = format!("ironside-target serve {flags}");
    let Command::Serve(serve) = Cli::try_parse_from(arguments.split(' ')).expect("flags parse").command
    else {
        panic!("serve was asked for");
    };
    serve.into_config().map(|(config, _)| config)
}

fn refused_flags(flags: &str) -> String {
    let arguments = format!("ironside-target serve {flags}");
    Cli::try_parse_from(arguments.split(' ')).expect_err("flags are refused").to_string()
}

fn from_text(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("target.toml"), text)
}

fn refused(text: &str) -> String {
    from_text(text).expect_err("the file is refused").to_string()
}

#[test]
fn the_shortest_file_and_the_shortest_flags_are_the_same() {
    let file = from_text("[[subsystem]]\n[[subsystem.namespace]]\npath = \"disk.img\"\n").unwrap();
    assert_eq!(file, from_flags("--namespace disk.img").unwrap());
    assert_eq!(file.listen, ["127.0.0.1:4420".parse().unwrap()]);
    assert_eq!(file.subsystems[0].hosts, Hosts::ThisMachine);
    assert_eq!((file.queue_depth, file.crc, file.drain_timeout_s), (128, Crc::On, 30));
}

#[test]
fn everything_said_in_a_file_can_be_said_by_flags() {
    let file = from_text(
        r#"
        listen = ["192.0.2.1:4420", "[2001:db8::1]:4421", "::1"]
        reactors = 2
        queue-depth = 1024
        crc = "peer"
        io-poll = "off"
        poll = "always"
        huge-pages = "1GiB"
        drain-timeout = 5
        state-dir = "/var/lib/other"

        [[subsystem]]
        nqn = "nqn.2014-08.org.example:a"
        serial = "S1"
        host-limit = { iops = 500, burst = "0s" }
        allow-hosts = ["nqn.2014-08.org.example:h1", "nqn.2014-08.org.example:h2"]

        [[subsystem.namespace]]
        path = "disk.img"
        size = "1GiB"
        lba = 4096
        read-only = true
        uuid = "6f9619ff-8b86-d011-b42d-00cf4fc964ff"

        [[subsystem.namespace]]
        ram = 1048576
        limit = { bandwidth = 1073741824 }

        [[subsystem.namespace]]
        null = "1 TiB"
        lba = 512
        "#,
    );
    let flags = from_flags(
        "--listen 192.0.2.1 --listen [2001:db8::1]:4421 --listen [::1] --reactors 2 --queue-depth 1024 --crc peer \
         --io-poll off --poll always --huge-pages 1GiB --drain-timeout 5 --state-dir /var/lib/other --nqn nqn.2014-08.org.example:a --serial S1 \
         --allow-host nqn.2014-08.org.example:h1 --allow-host nqn.2014-08.org.example:h2 \
         --namespace disk.img,size=1GiB,lba=4096,read-only,uuid=6f9619ff-8b86-d011-b42d-00cf4fc964ff \
         --host-limit iops=500,burst=0s --namespace ram:1MiB,bandwidth=1GiB --namespace null:1T,lba=512",
    );
    assert_eq!(file.unwrap(), flags.unwrap());
}

#[test]
fn an_unknown_key_is_told_with_its_line_and_the_nearest_one() {
    let told = refused("listen = []\n\n[[subsystem]]\nallow-host = []\n");
    assert_eq!(
        told,
        "unknown key `allow-host`\n --> target.toml:4:1\n  |\n4 | allow-host = []\n  | ^^^^^^^^^^ did you mean `allow-hosts`?"
    );
    assert!(refused("queue_depth = 3").contains("did you mean `queue-depth`?"));
    assert!(!refused("zebra = 3").contains("did you mean"));
    assert!(refused("[[subsystem]]\n[[subsystem.namespace]]\nsise = 3").contains("target.toml:3:1"));
}

#[test]
fn a_wrong_type_or_value_is_told_with_its_line_and_key() {
    assert!(
        refused("reactors = \"two\"")
            .starts_with("`reactors` takes a whole number, not string\n --> target.toml:1:12")
    );
    assert!(refused("\nlisten = [1]").contains("target.toml:2:11"));
    assert!(refused("queue-depth = 1025").starts_with("`queue-depth`: must be between 2 and 1024, not 1025"));
    assert!(refused("queue-depth = 1").contains("between 2 and 1024"));
    assert!(refused("reactors = -1").contains("between 1 and 64, not -1"));
    assert!(refused("crc = \"maybe\"").contains("none of on, off and peer"));
    assert!(refused("io-poll = \"on\"").contains("neither auto nor off"));
    assert!(refused("poll = \"often\"").contains("none of always, adaptive and never"));
    assert!(refused("huge-pages = \"4MiB\"").contains("none of off, auto, 2MiB and 1GiB"));
    assert!(refused("listen = [\"localhost\"]").contains("not an address"));
    assert!(refused("listen = [\"127.0.0.1:0\"]").contains("name the port"));
    assert!(refused("subsystem = 1").contains("takes tables"));
    assert!(refused("[[subsystem]]\nnqn = \"iqn.x\"").contains("begins with \"nqn.\""));
    assert!(refused("[[subsystem]]\nserial = \"123456789012345678901\"").contains("1 to 20"));
    let namespace = |keys: &str| refused(&format!("[[subsystem]]\n[[subsystem.namespace]]\n{keys}\n"));
    assert!(namespace("ram = \"1.5GiB\"").contains("not a size"));
    assert!(namespace("ram = \"99999999999999999999\"").contains("not a size"));
    assert!(namespace("ram = \"16777216TiB\"").contains("not a size"));
    assert!(namespace("ram = 513").contains("4096-byte blocks"));
    assert!(namespace("ram = 0").contains("4096-byte blocks"));
    assert!(namespace("path = \"a\"\nlba = 1024").contains("512 or 4096 bytes, not 1024"));
    assert!(namespace("path = \"a\"\nram = 4096").contains("exactly one of"));
    assert!(namespace("ram = 4096\nsize = 4096").contains("behind the colon"));
    assert!(namespace("read-only = true").contains("exactly one of"));
    assert!(namespace("ram = 4096\nlimit = 3").contains("takes a table such as"));
    assert!(namespace("ram = 4096\nlimit = { iop = 3 }").contains("did you mean `iops`?"));
    assert!(namespace("ram = 4096\nlimit = { burst = \"1s\" }").contains("limits nothing"));
    assert!(
        namespace("ram = 4096\nlimit = { iops = 0 }").contains("between 1 and 100000000 a second, not 0")
    );
    assert!(namespace("ram = 4096\nlimit = { iops = 1, burst = \"2m\" }").contains("such as 100ms"));
    assert!(namespace("nsid = 0").contains("between 1 and 1024"));
}

#[test]
fn what_is_not_toml_is_told_with_its_line() {
    assert!(refused("listen = [\n\"a\"\nreactors = 1").contains("target.toml:"));
    assert!(refused("a = 1\na = 2").contains("target.toml:2:1"));
    let missing = Config::load(Path::new("no such file.toml")).expect_err("it is missing");
    assert!(missing.to_string().starts_with("no such file.toml: cannot be read"));
}

#[test]
fn what_does_not_go_together_is_told_with_its_place() {
    assert!(refused("").contains("nothing to serve"));
    let two = |first: &str, second: &str| {
        refused(&format!(
            "[[subsystem]]\n{first}\n[[subsystem.namespace]]\nram = 4096\n[[subsystem]]\n{second}\n[[subsystem.namespace]]\nram = 4096\n"
        ))
    };
    let name = "nqn = \"nqn.2014-08.org.example:a\"";
    assert!(two(name, name).contains("target.toml:5:1"));
    assert!(two(name, "").contains("each needs an `nqn`"));
    assert!(two(name, "nqn = \"nqn.2014-08.org.nvmexpress.discovery\"").contains("own name"));
    let both = "allow-hosts = []\nallow-any-host = true";
    assert!(two(both, name).contains("target.toml:3:18"));
    let namespaces = |keys: &str| refused(&format!("[[subsystem]]\nnamespace = [{keys}]"));
    assert!(
        namespaces("{ ram = 4096, nsid = 2 }, { ram = 4096, nsid = 2 }").contains("a namespace 2 already")
    );
    assert!(namespaces("{ path = \"/a\" }, { path = \"/a\" }").contains("`/a` is a namespace already"));
    assert!(from_flags("--namespace /a --namespace /a").unwrap_err().to_string().contains("namespace 2"));
}

#[test]
fn flags_are_refused_by_name() {
    assert!(refused_flags("--namespace ram:1X").contains("not a size"));
    assert!(refused_flags("--namespace a,colour=red").contains("no option of a namespace"));
    assert!(refused_flags("--namespace a,read-only=1").contains("no option of a namespace"));
    assert!(refused_flags("--namespace ram:1G,size=1G").contains("behind the colon"));
    assert!(refused_flags("--namespace ,lba=512").contains("no path"));
    assert!(refused_flags("--namespace a --queue-depth 1025").contains("1025"));
    assert!(refused_flags("--config f --namespace a").contains("cannot be used with"));
    assert!(
        refused_flags("--namespace a --allow-any-host --allow-host nqn.a").contains("cannot be used with")
    );
    assert!(refused_flags("--reactors 1").contains("required"));
}

#[test]
fn what_is_no_file_of_a_sensible_size_is_not_read() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("target.toml");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Reading it would wait for ever.
    assert!(Config::check_regular(&path).unwrap_err().to_string().contains("no regular file"));
    let file = File::create(place.path().join("large.toml")).unwrap();
    file.set_len(1 << 30).unwrap();
    let error = Config::load(&place.path().join("large.toml")).unwrap_err();
    assert!(matches!(error.problem, Problem::TooLarge), "{error}");
}

#[test]
fn an_empty_path_is_told_with_its_line() {
    let error = refused("[[subsystem]]\n[[subsystem.namespace]]\npath = \"\"\n");
    assert!(error.contains("the path is empty") && error.contains("target.toml:3:8"), "{error}");
}

#[test]
fn a_subsystem_of_two_targets_is_the_same_on_both() {
    let text = |keys: &str, namespace: &str| {
        format!(
            "[[subsystem]]\nnqn = \"nqn.2014-08.org.example:a\"\n{keys}\nnamespace = [{{ {namespace} }}]\n"
        )
    };
    let (shared, uuid) =
        ("serial = \"S\"\ncntlid-min = 1000", "uuid = \"6f9619ff-8b86-d011-b42d-00cf4fc964ff\"");
    let good = text(shared, &format!("path = \"disk.img\", {uuid}"));
    assert_eq!(from_text(&good).unwrap().subsystems[0].cntlids, Some(1000..=0xFFEF));
    let few = good.replace("1000", "1000\ncntlid-max = 1254");
    assert!(refused(&few).contains("256 numbers at least"));
    assert!(from_text(&few.replace("1254", "1255")).is_ok());
    assert!(refused(&few.replace("1254", "999")).contains("256 numbers at least"));
    assert!(refused(&good.replace("serial = \"S\"", "")).contains("`nqn` and `serial`"));
    assert!(refused(&text(shared, "path = \"disk.img\"")).contains("give the `uuid`"));
    assert!(refused(&text(shared, &format!("ram = 8192, {uuid}"))).contains("cannot see this memory"));
    assert!(refused(&good.replace("1000", "70000")).contains("must be between 1 and 65519"));
}

#[test]
fn groups_have_states_at_listeners_there_are() {
    let text = |ana: &str| {
        format!(
            "listen = [\"127.0.0.1\", \"127.0.0.1:4421\"]\n[[subsystem]]\n\
             namespace = [{{ null = 8192 }}, {{ null = 8192, ana-group = 7 }}]\nana = [{ana}]\n"
        )
    };
    let of = |group, listen: Option<&str>, state| Access {
        group,
        listen: listen.map(|listen| listen.parse().unwrap()),
        state,
    };
    let good = text(
        "{ state = \"non-optimized\" }, { group = 7, listen = \"127.0.0.1:4421\", state = \"persistent-loss\" }",
    );
    let config = from_text(&good).unwrap();
    let subsystem = &config.subsystems[0];
    assert_eq!(subsystem.namespaces.iter().map(|one| one.ana_group).collect::<Vec<_>>(), [1, 7]);
    let expected =
        [of(1, None, AnaState::NON_OPTIMIZED), of(7, Some("127.0.0.1:4421"), AnaState::PERSISTENT_LOSS)];
    assert_eq!(subsystem.access, expected);
    for (ana, why) in [
        ("{ group = 7 }", "needs its `state`"),
        ("{ state = \"gone\" }", "none of optimized"),
        ("{ group = 2, state = \"change\" }", "no namespace of the subsystem is of ANA group 2"),
        ("{ listen = \"127.0.0.1:4422\", state = \"change\" }", "no listener 127.0.0.1:4422"),
        ("{ group = 129, state = \"change\" }", "between 1 and 128"),
        ("{ state = \"change\" }, { state = \"optimized\" }", "ANA group 1 has two states"),
        ("{ state = \"change\", nsid = 1 }", "unknown key `nsid`"),
    ] {
        let refused = refused(&text(ana));
        assert!(refused.contains(why), "{refused}");
    }
}

fn with_host(keys: &str) -> String {
    format!("[[subsystem]]\n[[subsystem.host]]\n{keys}\n[[subsystem.namespace]]\nram = 4096\n")
}

#[test]
fn a_host_with_a_key_is_said_in_a_file_and_by_flags() {
    let keys = |config: Config| config.subsystems.into_iter().flat_map(|one| one.keys).collect::<Vec<_>>();
    let least = keys(from_text(&with_host("key-file = \"host.key\"")).unwrap());
    assert_eq!(least, [HostKey::new(None, "host.key".into(), None)], "this machine's host, with everything");
    assert_eq!(least, keys(from_flags("--key-file host.key --namespace ram:4096").unwrap()));
    let all = with_host(
        "nqn = \"nqn.2014-08.org.example:h\"\nkey-file = \"h\"\ncontroller-key-file = \"c\"\n\
         hashes = [\"sha512\", \"sha256\"]\ngroups = [\"ffdhe3072\", \"null\"]\non-key-change = \"disconnect\"",
    );
    let nqn = "nqn.2014-08.org.example:h".parse().unwrap();
    let expected = HostKey {
        hashes: vec![Hash::Sha512, Hash::Sha256],
        groups: vec![Group::Ffdhe3072, Group::Null],
        disconnect_on_change: true,
        ..HostKey::new(Some(nqn), "h".into(), Some("c".into()))
    };
    assert_eq!(keys(from_text(&all).unwrap()), [expected]);
    let hosts = "--allow-host nqn.2014-08.org.example:h --allow-host nqn.2014-08.org.example:i";
    let flags = format!("--key-file h --controller-key-file c {hosts} --namespace ram:4096");
    let named: Vec<_> = keys(from_flags(&flags).unwrap()).iter().map(|key| key.nqn.unwrap()).collect();
    assert_eq!(named, [nqn, "nqn.2014-08.org.example:i".parse().unwrap()]);
}

#[test]
fn a_key_which_cannot_be_is_told_with_its_place() {
    assert!(refused(&with_host("nqn = \"nqn.2014-08.org.example:h\"")).contains("needs a `key-file`"));
    let with = |keys: &str| refused(&with_host(&format!("key-file = \"h\"\n{keys}")));
    assert!(with("hashes = [\"md5\"]").contains("target.toml:4:11"), "{}", with("hashes = [\"md5\"]"));
    assert!(with("hashes = []").contains("`hashes`"));
    assert!(with("groups = [\"ffdhe1024\"]").contains("target.toml:4:11"));
    assert!(with("on-key-change = \"shrug\"").contains("target.toml:4:17"));
    assert!(with("keyfile = \"h\"").contains("did you mean `key-file`?"));
    let twice =
        "[[subsystem]]\nhost = [{ key-file = \"a\" }, { key-file = \"b\" }]\nnamespace = [{ ram = 4096 }]";
    assert!(refused(twice).contains("has a key here already"));
    let any =
        "[[subsystem]]\nallow-any-host = true\nhost = [{ key-file = \"a\" }]\nnamespace = [{ ram = 4096 }]";
    assert!(refused(any).contains("it would get in without"));
    assert!(refused_flags("--controller-key-file c --namespace ram:4096").contains("--key-file"));
}

#[test]
fn hosts_have_keys_limits_or_both() {
    let hosts = |hosts: &str| {
        let text = format!(
            "[[subsystem]]\nallow-any-host = true\nhost = [{hosts}]\nnamespace = [{{ ram = 4096 }}]\n"
        );
        Config::parse(Path::new("target.toml"), &text).map(|config| config.subsystems[0].clone())
    };
    let (name, limit) = ("nqn = \"nqn.2014-08.org.example:h\"", "limit = { iops = 7 }");
    let subsystem = hosts(&format!("{{ {name}, {limit} }}, {{ {limit} }}")).unwrap();
    assert!(subsystem.keys.is_empty() && !subsystem.host_limits.each.is_any());
    let named = &subsystem.host_limits.named;
    assert!(named.len() == 2 && named[0].0.is_some() && named[1].0.is_none());
    let told = |text: &str| hosts(text).unwrap_err().to_string();
    assert!(told(&format!("{{ {limit} }}, {{ {limit} }}")).contains("has a limit here already"));
    assert!(told(&format!("{{ {name} }}")).contains("key-file"));
    assert!(told(&format!("{{ {name}, {limit}, groups = [\"null\"] }}")).contains("key-file"));
    assert!(told(&format!("{{ {name}, {limit}, key-file = \"k\" }}")).contains("any host is allowed"));
}

#[test]
fn limits_of_what_is_taken_on_are_said_in_a_file_and_by_flags() {
    let text = |limits: &str| format!("[limits]\n{limits}\n[[subsystem]]\nnamespace = [{{ ram = 4096 }}]\n");
    let config = from_text(&text("connections = 70\nbuffers = \"64MiB\"\nin-capsule = 8192")).unwrap();
    let expected = Limits::default()
        .with(Resource::Connections, 70)
        .with(Resource::Buffers, 64 << 20)
        .with(Resource::InCapsule, 8192);
    assert_eq!(config.limits, expected);
    let flags = from_flags("--limits connections=70,buffers=64MiB,in-capsule=8KiB --namespace ram:4096");
    assert_eq!(flags.unwrap().limits, expected);
    assert_eq!(from_text(&text("")).unwrap().limits, Limits::default());
    for (limits, why) in [
        ("io-queues = 257", "`io-queues`: must be between 1 and 256, not 257"),
        ("transfer-size = \"2MiB\"", "a power of two from 128 KiB to 1 MiB, not 2 MiB"),
        ("connections = \"many\"", "`connections` takes a whole number, not string"),
        ("buffers = true", "`buffers` takes a size"),
        ("connection = 1", "did you mean `connections`?"),
    ] {
        let refused = refused(&text(limits));
        assert!(refused.contains(why) && refused.contains("target.toml:2:"), "{refused}");
    }
    assert!(refused("limits = 1\n").contains("write [limits]"));
}
