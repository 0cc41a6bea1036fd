//! Requests against a target without reactors: what is asked, answered, changed and refused.
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ironside_common::time::Time;
use serde_json::{Value, json};

use super::*;
use crate::control::config::Config;
use crate::control::prepare::{Served, prepare};
use crate::control::reload::{changes, plan};
use crate::control::source::Source;
use crate::poll_group::Survey;

const A: &str = "nqn.2014-08.org.example:a";
const HOST: &str = "nqn.2014-08.org.example:h";

/// A target that changes what it would serve.
struct Paper {
    served: Served,
    source: Source,
    directory: tempfile::TempDir,
}

impl Paper {
    fn new(subsystems: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("target.toml");
        let text = format!("# kept\nstate-dir = {:?}\ncontrol = \"c\"\n{subsystems}", directory.path());
        std::fs::write(&path, text).unwrap();
        let (config, source) = Source::load(&path).unwrap();
        Self { served: prepare(config).unwrap(), source, directory }
    }

    fn call(&mut self, method: &str, parameters: Value) -> Result<Value, (i64, String)> {
        let request = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": parameters });
        let answer = answer(request.to_string().as_bytes(), self).unwrap();
        let mut answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(7)));
        match answer.get("error") {
            Some(error) => Err((error["code"].as_i64().unwrap(), error["message"].as_str().unwrap().into())),
            None => Ok(answer["result"].take()),
        }
    }

    fn done(&mut self, method: &str, parameters: Value) -> Value {
        self.call(method, parameters).unwrap_or_else(|error| panic!("{method}: {error:?}"))
    }

    fn refused(&mut self, method: &str, parameters: Value) -> (i64, String) {
        let before = self.text();
        let refused = self.call(method, parameters).unwrap_err();
        assert_eq!(self.text(), before, "a refusal changed something");
        assert_eq!(self.file_text(), before);
        refused
    }

    fn file_text(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("target.toml")).unwrap()
    }
}

impl Subject for Paper {
    fn served(&self) -> &Served {
        &self.served
    }

    fn source(&self) -> &Source {
        &self.source
    }

    fn source_mut(&mut self) -> &mut Source {
        &mut self.source
    }

    fn take_over(&mut self, config: Config) -> Result<Applied, Failure> {
        let (next, kept) = plan(&self.served, config)?;
        let changes = changes(&self.served.catalog, &next.catalog);
        self.served = next;
        Ok(Applied { changes, kept })
    }

    fn reload(&mut self) -> Result<Applied, Failure> {
        let (config, source) = self.source.again(&self.served.config)?;
        let applied = self.take_over(config)?;
        self.source = source;
        Ok(applied)
    }

    fn survey(&mut self) -> Result<Vec<Survey>, Failure> {
        Ok(vec![Survey::default()])
    }

    fn refresh(&mut self) {}
}

fn address(port: u16) -> Value {
    json!({ "trtype": "rdma", "adrfam": "ipv4", "traddr": "127.0.0.1", "trsvcid": port.to_string() })
}

fn subsystem(paper: &mut Paper) -> Value {
    paper.done("nvmf_get_subsystems", json!({ "nqn": A }))[0].take()
}

#[test]
fn a_subsystem_is_made_from_nothing_and_goes_again() {
    let mut paper = Paper::new("");
    assert_eq!(paper.done("bdev_malloc_create", json!({ "num_blocks": 64, "block_size": 512 })), "Malloc0");
    paper.done(
        "nvmf_create_transport",
        json!({ "trtype": "RDMA", "zcopy": false, "no_srq": false, "c2h_success": true }),
    );
    paper.done("nvmf_create_subsystem", json!({ "nqn": A, "serial_number": "S1", "allow_any_host": false, "ana_reporting": false, "passthrough": false, "enable_nssr": false }));
    let add = json!({ "nqn": A, "namespace": { "bdev_name": "Malloc0" }, "tgt_name": "nvmf_tgt" });
    assert_eq!(paper.done("nvmf_subsystem_add_ns", add.clone()), 1);
    let (code, message) = paper.refused("nvmf_subsystem_add_ns", add);
    assert!(code == -32602 && message.contains("is a namespace already"), "{code} {message}");
    paper.done("nvmf_subsystem_add_host", json!({ "nqn": A, "host": HOST }));
    paper.done("nvmf_subsystem_add_listener", json!({ "nqn": A, "listen_address": address(4421), "secure_channel": false, "ana_state": "inaccessible" }));
    let there = subsystem(&mut paper);
    assert_eq!(there["hosts"], json!([{ "nqn": HOST }]));
    assert_eq!(
        there["listen_addresses"],
        json!([{ "trtype": "RDMA", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "4421" }])
    );
    assert_eq!(
        (&there["serial_number"], &there["namespaces"][0]["bdev_name"]),
        (&json!("S1"), &json!("Malloc0"))
    );
    let listeners = paper.done("nvmf_subsystem_get_listeners", json!({ "nqn": A }));
    assert_eq!(listeners[0]["ana_states"], json!([{ "ana_group": 1, "ana_state": "inaccessible" }]));
    let bdev = paper.done("bdev_get_bdevs", json!({ "name": "Malloc0" }))[0].take();
    assert_eq!(
        (&bdev["num_blocks"], &bdev["claimed"], &bdev["uuid"]),
        (&json!(64), &json!(true), &there["namespaces"][0]["uuid"])
    );
    assert!(paper.file_text().starts_with("# kept\n") && paper.file_text().contains("bdev = \"Malloc0\""));
    paper.done("nvmf_subsystem_remove_listener", json!({ "nqn": A, "listen_address": address(4421) }));
    paper.done("nvmf_subsystem_remove_host", json!({ "nqn": A, "host": HOST }));
    paper.done("nvmf_subsystem_remove_ns", json!({ "nqn": A, "nsid": 1 }));
    let kept = paper.done("bdev_get_bdevs", json!({}))[0].take();
    assert_eq!((&kept["uuid"], &kept["claimed"]), (&bdev["uuid"], &json!(false)), "it is the same memory");
    paper.done("nvmf_delete_subsystem", json!({ "nqn": A }));
    paper.done("bdev_malloc_delete", json!({ "name": "Malloc0" }));
    assert_eq!(
        paper.done("nvmf_get_subsystems", json!({})).as_array().unwrap().len(),
        1,
        "discovery is left"
    );
}

#[test]
fn refusals_have_the_codes_of_spdk() {
    let mut paper = Paper::new(&format!(
        "[[subsystem]]\nnqn = {A:?}\nallow-any-host = true\nnamespace = [{{ null = \"1MiB\" }}]\n"
    ));
    let file = paper.directory.path().join("absent");
    for (method, parameters, code, words) in [
        ("nvmf_nothing", json!({}), -32601, "rpc_get_methods"),
        ("nvmf_delete_subsystem", json!({ "nqn": HOST }), -32602, "there is no subsystem"),
        ("nvmf_delete_subsystem", json!({ "nqn": A, "colour": 1 }), -32602, "colour"),
        ("nvmf_create_subsystem", json!({ "nqn": "x" }), -32602, "x"),
        ("nvmf_create_subsystem", json!({ "nqn": A }), -32602, "there already"),
        (
            "nvmf_create_subsystem",
            json!({ "nqn": HOST, "passthrough": true }),
            -32602,
            "`passthrough` is not offered",
        ),
        ("nvmf_create_transport", json!({ "trtype": "TCP" }), -32602, "there is RDMA"),
        (
            "nvmf_create_transport",
            json!({ "trtype": "RDMA", "max_queue_depth": 64 }),
            -32602,
            "`queue-depth`",
        ),
        ("nvmf_subsystem_add_host", json!({ "nqn": A, "host": HOST }), -32602, "any host is allowed"),
        ("nvmf_subsystem_add_ns", json!({ "nqn": A, "namespace": { "bdev_name": "M" } }), -19, "no bdev M"),
        ("nvmf_subsystem_remove_ns", json!({ "nqn": A, "nsid": 2 }), -32602, "no namespace 2"),
        (
            "nvmf_subsystem_add_listener",
            json!({ "nqn": A, "listen_address": { "trtype": "TCP", "traddr": "1.2.3.4" } }),
            -32602,
            "RDMA",
        ),
        ("bdev_get_bdevs", json!({ "name": "M" }), -19, "no bdev M"),
        ("bdev_get_iostat", json!({ "names": ["M"] }), -19, "no bdev M"),
        ("bdev_get_iostat", json!({ "name": "M", "names": ["M"] }), -22, "not both"),
        ("bdev_get_iostat", json!({ "per_channel": true, "names": [] }), -22, "one bdev"),
        ("bdev_get_iostat", json!({ "reset_mode": "all" }), -32602, "only ever grows"),
        ("bdev_malloc_create", json!({ "num_blocks": 3, "block_size": 512 }), -22, "whole blocks"),
        ("bdev_malloc_create", json!({ "num_blocks": u64::MAX, "block_size": 4096 }), -22, "whole blocks"),
        (
            "bdev_malloc_create",
            json!({ "num_blocks": 8, "block_size": 4096, "md_size": 8 }),
            -32602,
            "`md_size`",
        ),
        ("bdev_uring_create", json!({ "name": "F", "filename": file }), -2, "is missing"),
        ("bdev_null_delete", json!({ "name": format!("{A}/1") }), -16, "nvmf_subsystem_remove_ns"),
        ("bdev_set_qos_limit", json!({ "name": format!("{A}/1") }), -22, "no rate limit"),
        ("nvmf_get_subsystems", json!({ "tgt_name": "other" }), -32602, "nvmf_tgt"),
        ("framework_get_config", json!({ "name": "iscsi" }), -32602, "not found"),
    ] {
        let (found, message) = paper.refused(method, parameters.clone());
        assert!(found == code && message.contains(words), "{method} {parameters}: {found} {message}");
    }
}

#[test]
fn a_namespace_described_where_it_is_can_be_limited_and_removed() {
    let mut paper = Paper::new("[[subsystem]]\nallow-any-host = true\nnamespace = [{ null = \"1MiB\" }]\n");
    let all = paper.done("bdev_get_bdevs", json!({}));
    let name = all[0]["name"].clone();
    paper.done("bdev_set_qos_limit", json!({ "name": name, "rw_ios_per_sec": 5000, "r_mbytes_per_sec": 3 }));
    paper.done("bdev_set_qos_limit", json!({ "name": name, "r_mbytes_per_sec": 0 }));
    let limits = paper.done("bdev_get_bdevs", json!({ "name": name }))[0]["assigned_rate_limits"].take();
    assert_eq!((&limits["rw_ios_per_sec"], &limits["r_mbytes_per_sec"]), (&json!(5000), &json!(0)));
    let nqn = name.as_str().unwrap().strip_suffix("/1").unwrap();
    paper.done("nvmf_subsystem_remove_ns", json!({ "nqn": nqn, "nsid": 1 }));
    assert_eq!(paper.done("bdev_get_bdevs", json!({})), json!([]));
}

#[test]
fn what_is_saved_can_be_loaded_elsewhere_as_a_whole() {
    let mut paper = Paper::new(&format!(
        "bdev = [{{ name = \"M\", ram = \"1MiB\", limit = {{ iops = 9000 }} }}]\n[[subsystem]]\nnqn = {A:?}\n\
         serial = \"S\"\nallow-hosts = [{HOST:?}]\nlisten = [\"127.0.0.1:4421\"]\nana = [{{ state = \"non-optimized\", \
         group = 3 }}]\nnamespace = [{{ bdev = \"M\" }}, {{ nsid = 5, null = \"1MiB\", ana-group = 3, \
         allow-hosts = [{HOST:?}] }}]\n"
    ));
    let saved = |paper: &mut Paper| {
        let part = |paper: &mut Paper, name| json!({ "subsystem": name, "config": paper.done("framework_get_config", json!({ "name": name, "with_batches": false })) });
        json!({ "subsystems": [part(paper, "bdev"), part(paper, "nvmf")] })
    };
    let first = saved(&mut paper);
    let mut other = Paper::new("");
    other.done("load_config", first.clone());
    let again = saved(&mut other).to_string().replace(&format!("{A}/5"), "X");
    let mut names = first.to_string();
    names = names.replace(&format!("{A}/5"), "X");
    assert_eq!(again, names);
    let mut wrong = first;
    wrong["subsystems"][1]["config"][1]["params"]["passthrough"] = json!(true);
    let (code, message) = Paper::new("").refused("load_config", wrong);
    assert!(code == -32602 && message.starts_with("nvmf, call 2, nvmf_create_subsystem: "), "{message}");
}

#[test]
fn what_a_saved_configuration_has_no_place_for_is_not_left_out() {
    for (host, words) in [
        (format!("limit = {{ iops = 5 }}, nqn = {HOST:?}"), "limit of its own"),
        (format!("key-file = KEY, nqn = {HOST:?}"), "has to authenticate"),
    ] {
        let keys = tempfile::tempdir().unwrap();
        let key = keys.path().join("key");
        std::fs::write(&key, "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:\n").unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let host = host.replace("KEY", &format!("{key:?}"));
        let text = format!(
            "[[subsystem]]\nnqn = {A:?}\nhost = [{{ {host} }}]\nnamespace = [{{ null = \"1MiB\" }}]\n"
        );
        let mut paper = Paper::new(&text);
        let (code, message) = paper.refused("framework_get_config", json!({ "name": "nvmf" }));
        assert!(code == -32603 && message.contains(words) && message.contains("ctl save"), "{message}");
        paper.done("framework_get_config", json!({ "name": "bdev" }));
    }
    let each = "[[subsystem]]\nallow-any-host = true\nhost-limit = { iops = 5 }\nnamespace = [{ null = \"1MiB\" }]\n";
    let (_, message) = Paper::new(each).refused("framework_get_config", json!({ "name": "nvmf" }));
    assert!(message.contains("each host is limited"), "{message}");
}

#[test]
fn lists_notifications_and_nonsense_are_told_apart() {
    let mut paper = Paper::new("");
    let mut ask = |text: &str| {
        answer(text.as_bytes(), &mut paper).map(|answer| serde_json::from_slice::<Value>(&answer).unwrap())
    };
    let both = ask(
        r#"[{"id":1,"method":"framework_wait_init"},{"method":"framework_wait_init"},{"id":2,"method":"x"}]"#,
    )
    .unwrap();
    assert_eq!(
        (both.as_array().unwrap().len(), &both[0]["result"], &both[1]["error"]["code"]),
        (2, &json!(true), &json!(-32601))
    );
    assert_eq!(ask(r#"{"method":"framework_wait_init"}"#), None);
    assert_eq!(ask(r#"[{"method":"x"}]"#), None);
    for (text, code) in [
        ("{]", -32700),
        ("[]", -32600),
        ("[5]", -32600),
        (r#"{"id":1,"jsonrpc":"1.0","method":"x"}"#, -32600),
        (r#"{"id":{},"method":"x"}"#, -32600),
        (r#"{"id":1,"method":5}"#, -32600),
        (r#"{"id":1,"method":"rpc_get_methods","more":1}"#, -32600),
        (r#"{"id":1,"method":"rpc_get_methods","params":[1]}"#, -32602),
    ] {
        let answer = ask(text).unwrap();
        let answer = answer.get(0).unwrap_or(&answer);
        assert_eq!(answer["error"]["code"], code, "{text}");
    }
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    assert_eq!(ask(&deep).unwrap()["error"]["code"], -32700);
}

#[test]
fn an_edited_file_is_read_before_it_is_changed() {
    let mut paper = Paper::new("");
    let path = paper.directory.path().join("target.toml");
    let text = format!("{}# edited\n", paper.file_text());
    std::fs::write(&path, &text).unwrap();
    let (code, message) = paper
        .call("bdev_null_create", json!({ "name": "N", "num_blocks": 8, "block_size": 512 }))
        .unwrap_err();
    assert!(code == -32603 && message.contains("ctl reload"), "{message}");
    assert_eq!(paper.done("ironside_reload", json!({})), json!({ "changes": [], "needs_restart": [] }));
    paper.done("bdev_null_create", json!({ "name": "N", "num_blocks": 8, "block_size": 512 }));
    assert!(paper.file_text().contains("# edited") && paper.file_text().contains("[[bdev]]"));
    std::fs::write(&path, "[[subsystem]\n").unwrap();
    let (code, message) = paper.call("ironside_reload", json!({})).unwrap_err();
    assert!(code == -32602 && message.contains("target.toml:1:"), "{message}");
}

// The socket -----------------------------------------------------------------------------------------------------------

fn server() -> (tempfile::TempDir, Server) {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::bind(&directory.path().join("control")).unwrap();
    (directory, server)
}

fn connect(directory: &tempfile::TempDir) -> UnixStream {
    let stream = UnixStream::connect(directory.path().join("control")).unwrap();
    stream.set_nonblocking(true).unwrap();
    stream
}

fn turn(server: &mut Server, at: Time) {
    while server.turn(at, &mut |request| Some([b"<", request, b">"].concat())) {}
}

fn read(mut stream: &UnixStream) -> Result<String, std::io::ErrorKind> {
    let mut bytes = vec![0; 4 << 20];
    stream
        .read(&mut bytes)
        .map(|count| String::from_utf8_lossy(&bytes[..count]).into_owned())
        .map_err(|error| error.kind())
}

#[test]
fn the_socket_is_for_its_user_and_goes_with_the_target() {
    let (directory, server) = server();
    let path = directory.path().join("control");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(Server::bind(&path), Err(ControlError::InUse(_))));
    drop(server);
    assert!(!path.exists());
    std::fs::write(&path, "mine").unwrap();
    assert!(matches!(Server::bind(&path), Err(ControlError::NoSocket(_))));
    std::fs::remove_file(&path).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    Server::bind(&path).expect("one that was left behind is in nobody's way");
}

#[test]
fn requests_come_in_pieces_and_several_at_once() {
    let (directory, mut server) = server();
    let (mut one, mut other) = (connect(&directory), connect(&directory));
    one.write_all(b"{\"a\":").unwrap();
    other.write_all(b"{\"b\":1}[{}]\n{\"c\":2}").unwrap();
    turn(&mut server, Time::ZERO);
    assert_eq!(read(&other).unwrap(), "<{\"b\":1}><[{}]><{\"c\":2}>");
    assert_eq!(read(&one), Err(std::io::ErrorKind::WouldBlock));
    one.write_all(b"\"}\"}").unwrap();
    turn(&mut server, Time::ZERO);
    assert_eq!(read(&one).unwrap(), "<{\"a\":\"}\"}>");
    one.write_all(b"nonsense").unwrap();
    turn(&mut server, Time::ZERO);
    assert!(read(&one).unwrap().contains("-32700"));
    assert_eq!(read(&one).unwrap(), "", "hung up on");
}

#[test]
fn who_sends_ahead_waits() {
    let (directory, mut server) = server();
    let mut client = connect(&directory);
    let ahead = b"{}".repeat(4 << 20);
    let mut fill = || std::iter::from_fn(|| client.write(&ahead).ok()).sum::<usize>();
    let first = fill();
    // Nobody wants an answer, so nothing but reading could hold it up.
    assert!((0..1000).all(|_| server.turn(Time::ZERO, &mut |_| None)), "one request each time");
    let more = fill();
    assert!(more < first, "{more} bytes more were read than {first} for 1000 requests of two bytes");
    let (mut done, mut last) = (0, usize::MAX);
    while done != last {
        last = done;
        while server.turn(Time::ZERO, &mut |_| {
            done += 1;
            None
        }) {}
    }
    assert_eq!((1000 + done) * 2, first + more, "all were done in their turn");
}

#[test]
fn who_dawdles_goes_and_who_is_idle_makes_room() {
    let (directory, mut server) = server();
    let late = Time::ZERO + Duration::from_secs(29);
    let idle = connect(&directory);
    turn(&mut server, Time::ZERO);
    let (mut half, mut deaf) = (connect(&directory), connect(&directory));
    half.write_all(b"{").unwrap();
    deaf.write_all(b"{}").unwrap();
    while server.turn(Time::ZERO, &mut |_| Some(vec![b'x'; 8 << 20])) {}
    assert!(server.deadline().is_some());
    half.write_all(b" ").unwrap();
    turn(&mut server, late);
    assert_eq!(read(&half), Err(std::io::ErrorKind::WouldBlock));
    turn(&mut server, Time::ZERO + Duration::from_secs(30));
    assert_eq!(read(&half).unwrap(), "", "a byte now and then does not help");
    while read(&deaf).is_ok_and(|text| !text.is_empty()) {}
    assert_eq!(server.deadline(), None);
    let crowd: Vec<UnixStream> = (0..CLIENTS_MAX).map(|_| connect(&directory)).collect();
    turn(&mut server, Time::ZERO + Duration::from_secs(31));
    assert_eq!(read(&idle).unwrap(), "", "it was idle for longest");
    assert!(crowd.iter().all(|one| read(one).is_err()), "nobody else had to go");
}
