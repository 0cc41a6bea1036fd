//! What is what in the value of a feature (NVM Express base specification 2.2, section 5.1.25), by the names nvme-cli has
//! for it.
use ironside_common::nvme::bits::{bit, bits};
use ironside_common::nvme::feature::{EventMask, FeatureId};
use serde_json::Value;

type Fields = Vec<(&'static str, Value)>;

/// The fields of a value, and of the data that came with it; none of a feature nobody knows.
pub(super) fn fields(feature: FeatureId, value: u32, data: &[u8]) -> Fields {
    let word = u64::from(value);
    match feature {
        FeatureId::ARBITRATION => arbitration(word),
        FeatureId::POWER_MANAGEMENT => vec![
            ("Workload Hint (WH)", bits(word, 7, 5).into()),
            ("WH description", workload(bits(word, 7, 5)).into()),
            ("Power State (PS)", bits(word, 4, 0).into()),
        ],
        FeatureId::TEMPERATURE_THRESHOLD => temperature(word),
        FeatureId::ERROR_RECOVERY => vec![
            ("Deallocated or Unwritten Logical Block Error Enable (DULBE)", enabled(bit(word, 16))),
            ("Time Limited Error Recovery (TLER)", format!("{} ms", bits(word, 15, 0) * 100).into()),
        ],
        FeatureId::VOLATILE_WRITE_CACHE => vec![("Volatile Write Cache Enable (WCE)", enabled(bit(word, 0)))],
        FeatureId::NUMBER_OF_QUEUES => vec![
            ("Number of IO Completion Queues Allocated (NCQA)", (bits(word, 31, 16) + 1).into()),
            ("Number of IO Submission Queues Allocated (NSQA)", (bits(word, 15, 0) + 1).into()),
        ],
        FeatureId::WRITE_ATOMICITY => vec![("Disable Normal (DN)", truth(bit(word, 0)))],
        FeatureId::ASYNC_EVENT_CONFIGURATION => events(value),
        FeatureId::TIMESTAMP => timestamp(data),
        FeatureId::KEEP_ALIVE_TIMER => vec![("Keep Alive Timeout (KATO) in milliseconds", value.into())],
        FeatureId::HOST_IDENTIFIER => host_identifier(data),
        FeatureId::RESERVATION_NOTIFICATION_MASK => vec![
            ("Mask Reservation Preempted Notification (RESPRE)", truth(bit(word, 3))),
            ("Mask Reservation Released Notification (RESREL)", truth(bit(word, 2))),
            ("Mask Registration Preempted Notification (REGPRE)", truth(bit(word, 1))),
        ],
        FeatureId::RESERVATION_PERSISTENCE => {
            vec![("Persist Through Power Loss (PTPL)", truth(bit(word, 0)))]
        }
        FeatureId::NAMESPACE_WRITE_PROTECTION => {
            vec![("Namespace Write Protect", protection(bits(word, 2, 0)).into())]
        }
        _ => Vec::new(),
    }
}

fn truth(is: bool) -> Value {
    (if is { "True" } else { "False" }).into()
}

fn enabled(is: bool) -> Value {
    (if is { "Enabled" } else { "Disabled" }).into()
}

fn arbitration(word: u64) -> Fields {
    let burst = match bits(word, 2, 0) {
        7 => "No limit".into(),
        exponent => (1 << exponent).to_string(),
    };
    vec![
        ("High Priority Weight (HPW)", (bits(word, 31, 24) + 1).into()),
        ("Medium Priority Weight (MPW)", (bits(word, 23, 16) + 1).into()),
        ("Low Priority Weight (LPW)", (bits(word, 15, 8) + 1).into()),
        ("Arbitration Burst (AB)", burst.into()),
    ]
}

const fn workload(hint: u64) -> &'static str {
    match hint {
        0 => "No Workload",
        1 => "Extended Idle Period with a Burst of Random Writes",
        2 => "Heavy Sequential Writes",
        _ => "Reserved",
    }
}

fn temperature(word: u64) -> Fields {
    let kind = match bits(word, 21, 20) {
        0 => "Over Temperature Threshold",
        1 => "Under Temperature Threshold",
        _ => "Reserved",
    };
    let sensor = match bits(word, 19, 16) {
        0 => "Composite Temperature".into(),
        sensor @ 1..=8 => format!("Temperature Sensor {sensor}"),
        _ => "Reserved".into(),
    };
    vec![
        ("TMPTHH kelvin", format!("{} K", bits(word, 24, 22)).into()),
        ("Threshold Type Select (THSEL)", bits(word, 21, 20).into()),
        ("THSEL description", kind.into()),
        ("Threshold Temperature Select (TMPSEL)", bits(word, 19, 16).into()),
        ("TMPSEL description", sensor.into()),
        ("TMPTH kelvin", format!("{} K", bits(word, 15, 0)).into()),
    ]
}

fn events(value: u32) -> Fields {
    let sent = |is: bool| (if is { "Send async event" } else { "Do not send async event" }).into();
    let events = [
        ("Discovery Log Page Change Notices", EventMask::DISCOVERY),
        ("Endurance Group Event Aggregate Log Change Notices", EventMask(1 << 14)),
        ("LBA Status Information Notices", EventMask(1 << 13)),
        ("Predictable Latency Event Aggregate Log Change Notices", EventMask(1 << 12)),
        ("Asymmetric Namespace Access Change Notices", EventMask::ANA),
        ("Telemetry Log Notices", EventMask(1 << 10)),
        ("Firmware Activation Notices", EventMask::FIRMWARE_ACTIVATION),
        ("Namespace Attribute Notices", EventMask::NAMESPACE_ATTRIBUTES),
    ];
    let mask = EventMask(value);
    let mut fields: Fields =
        events.into_iter().map(|(name, event)| (name, sent(mask.contains(event)))).collect();
    fields.push(("SMART / Health Critical Warnings", sent(bits(value.into(), 7, 0) != 0)));
    fields
}

/// Milliseconds since 1970 by the controller's clock, and how it came to know them.
fn timestamp(data: &[u8]) -> Fields {
    let Some(&[a, b, c, d, e, f, attributes, _]) = data.first_chunk() else { return Vec::new() };
    let attributes = u64::from(attributes);
    let origin = match bits(attributes, 3, 1) {
        0 => "The Timestamp field was initialized to 0h by a Controller Level Reset.",
        1 => "The Timestamp field was initialized with a Timestamp value using a Set Features command.",
        _ => "Reserved",
    };
    let synch = match bit(attributes, 0) {
        false => "The controller counted time continuously since the Timestamp was initialized.",
        true => "The controller may have stopped counting since the Timestamp was initialized.",
    };
    vec![
        ("timestamp", u64::from_le_bytes([a, b, c, d, e, f, 0, 0]).into()),
        ("timestamp origin", origin.into()),
        ("synch", synch.into()),
    ]
}

/// The short one is a number, as nvme-cli has it; the extended one is written as it lies.
fn host_identifier(data: &[u8]) -> Fields {
    let value = match (<[u8; 8]>::try_from(data), uuid::Uuid::from_slice(data)) {
        (Ok(short), _) => u64::from_le_bytes(short).into(),
        (_, Ok(extended)) => extended.to_string().into(),
        _ => return Vec::new(),
    };
    vec![("Host Identifier (HOSTID)", value)]
}

const fn protection(state: u64) -> &'static str {
    match state {
        0 => "No Write Protect",
        1 => "Write Protect",
        2 => "Write Protect Until Power Cycle",
        3 => "Permanent Write Protect",
        _ => "Reserved",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn field(feature: FeatureId, value: u32, data: &[u8], name: &str) -> Value {
        let found = fields(feature, value, data).into_iter().find(|(field, _)| *field == name);
        found.map(|(_, value)| value).unwrap_or_default()
    }

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let of = |feature, value, name| field(feature, value, &[], name);
        assert_eq!(of(FeatureId::ARBITRATION, 0x0403_0207, "High Priority Weight (HPW)"), 5);
        assert_eq!(of(FeatureId::ARBITRATION, 0x0403_0207, "Arbitration Burst (AB)"), "No limit");
        assert_eq!(of(FeatureId::ARBITRATION, 3, "Arbitration Burst (AB)"), "8");
        assert_eq!(of(FeatureId::POWER_MANAGEMENT, 0x43, "WH description"), "Heavy Sequential Writes");
        assert_eq!(
            of(FeatureId::TEMPERATURE_THRESHOLD, 0x0012_0157, "TMPSEL description"),
            "Temperature Sensor 2"
        );
        assert_eq!(of(FeatureId::TEMPERATURE_THRESHOLD, 0x0012_0157, "TMPTH kelvin"), "343 K");
        assert_eq!(
            of(FeatureId::ERROR_RECOVERY, 0x0001_0002, "Time Limited Error Recovery (TLER)"),
            "200 ms"
        );
        assert_eq!(of(FeatureId::VOLATILE_WRITE_CACHE, 1, "Volatile Write Cache Enable (WCE)"), "Enabled");
        let events = |name| of(FeatureId::ASYNC_EVENT_CONFIGURATION, 0x800, name);
        assert_eq!(events("Asymmetric Namespace Access Change Notices"), "Send async event");
        assert_eq!(events("Namespace Attribute Notices"), "Do not send async event");
        let mask = FeatureId::RESERVATION_NOTIFICATION_MASK;
        assert_eq!(of(mask, 8, "Mask Reservation Preempted Notification (RESPRE)"), "True");
        assert_eq!(of(FeatureId::NAMESPACE_WRITE_PROTECTION, 1, "Namespace Write Protect"), "Write Protect");
        assert_eq!(fields(FeatureId(0xC0), 1, &[]), []);
    }

    #[test]
    fn data_is_read_as_far_as_it_is_there() {
        let stamp = [0x10, 0x27, 0, 0, 0, 0, 2, 0];
        assert_eq!(field(FeatureId::TIMESTAMP, 0, &stamp, "timestamp"), 10_000);
        let origin = field(FeatureId::TIMESTAMP, 0, &stamp, "timestamp origin");
        assert!(origin.as_str().unwrap().contains("Set Features"));
        assert_eq!(fields(FeatureId::TIMESTAMP, 0, &stamp[..7]), []);
        let id = |data: &[u8]| field(FeatureId::HOST_IDENTIFIER, 0, data, "Host Identifier (HOSTID)");
        assert_eq!(id(&[1, 2, 0, 0, 0, 0, 0, 0]), json!(513));
        assert_eq!(id(&[0x11; 16]), "11111111-1111-1111-1111-111111111111");
        assert_eq!(id(&[1]), Value::Null);
    }
}
