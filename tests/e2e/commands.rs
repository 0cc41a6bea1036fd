//! What `ironside` tells of controllers and namespaces by nvme-cli's commands, of a device that is attached and of a target
//! that is only named.
use ironside_tests::support::programs::{Initiator, Target};
use serde_json::{Value, json};

use super::bench::Bench;

/// The words which name a target that is not attached.
fn whom(target: &Target) -> Vec<String> {
    let port = target.port.to_string();
    ["-a", "127.0.0.1", "-s", &port, "-n", &target.nqn].map(str::to_owned).to_vec()
}

fn said(initiator: &Initiator, command: &str, whom: &[String], more: &[&str]) -> String {
    let words = [command].into_iter().chain(whom.iter().map(String::as_str)).chain(more.iter().copied());
    initiator.succeed(&words.collect::<Vec<_>>())
}

fn json_of(initiator: &Initiator, command: &str, whom: &[String], more: &[&str]) -> Value {
    let more = [more, &["-o", "json"]].concat();
    serde_json::from_str(&said(initiator, command, whom, &more)).unwrap()
}

#[test]
fn logs_and_features_are_read_of_a_device_and_of_a_target() {
    let bench = Bench::new();
    let initiator = &bench.initiator;
    let attached = bench.connect(&["--via", "nbd"]);
    let device = vec![attached["DevicePath"].as_str().unwrap().to_owned()];
    for whom in [device, whom(bench.target())] {
        let json = |command, more: &[&str]| json_of(initiator, command, &whom, more);

        let smart = json("smart-log", &[]);
        assert_eq!((&smart["avail_spare"], &smart["critical_warning"]["value"]), (&json!(100), &json!(0)));
        let text = said(initiator, "smart-log", &whom, &["-H"]);
        assert!(text.contains("available_spare                         : 100%\n"), "{text}");
        let raw = said(initiator, "get-log", &whom, &["-i", "2", "-l", "512", "-b"]);
        assert_eq!((raw.len(), raw.as_bytes()[3]), (512, 100));
        let dump = said(initiator, "get-log", &whom, &["-i", "0x2", "-l", "16", "-o", "4"]);
        assert!(dump.contains("log-id:2 namespace-id:0xffffffff\n") && dump.contains("0000: "), "{dump}");
        let odd: Vec<_> = ["get-log"].into_iter().map(str::to_owned).chain(whom.clone()).collect();
        let odd = [&odd[..], &["-i", "2", "-l", "3"].map(str::to_owned)].concat();
        assert!(initiator.fail(2, &odd).contains("no multiple of 4"));

        let access = json("ana-log", &[]);
        let group = &access["ANA DESC LIST "][0];
        assert_eq!((&access["ngrps"], &group["state"]), (&json!(1), &json!("optimized")));
        assert_eq!(group["NSIDS"], json!([{ "nsid": 1 }]));
        assert_eq!(json("ana-log", &["-g"])["ANA DESC LIST "][0]["NSIDS"], json!([]));

        let names = json("ns-descs", &[]);
        let uuid = names["ns-descs"].as_array().unwrap().iter().find_map(|name| name["uuid"].as_str());
        let uuid = uuid.unwrap();
        let text = said(initiator, "ns-descs", &whom, &[]);
        assert!(text.contains(&format!("uuid    : {uuid}\n")), "{text}");

        let cache = json("get-feature", &["-f", "6", "-H"]);
        assert_eq!(
            cache["feature: 0x06"],
            json!([{ "name": "Volatile Write Cache", "Current": "0x00000001" }])
        );
        assert_eq!(cache["Feature: 0x06"][0]["Volatile Write Cache Enable (WCE)"], "Enabled");
        let all = json("get-feature", &[]);
        assert!(all["feature: 0x07"].is_array() && all["feature: 0x81"][0]["data"].is_string(), "{all}");
        assert_eq!(all.get("feature: 0x08"), None, "interrupts are none of fabrics' business");
    }
}
