//! `ironside smart-log`: health of a controller, and how much it has done, laid out as nvme-cli does.
use std::fmt::Write;

use clap::Args;
use ironside_common::nvme::ALL_NAMESPACES;
use ironside_common::nvme::admin::GetLogPage;
use ironside_common::nvme::bits::bit;
use ironside_common::nvme::log_page::{LogPageId, Smart};
use serde_json::{Value, json};
use zerocopy::FromBytes;

use super::arguments::{Format, Output, number};
use super::error::CliError;
use super::inquiry::Subject;
use super::log_page;
use super::table::{json_number, print_json, write_raw};

/// Show how a controller is, and what it has done
///
/// Of an attached device or, with -a and -n, of a controller that is not attached.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    subject: Subject,
    /// The namespace; all unless given
    #[arg(long, visible_alias = "nsid", value_name = "NSID", value_parser = number::<u32>, default_value_t = ALL_NAMESPACES, hide_default_value = true)]
    namespace_id: u32,
    /// Write the bytes of the page as they are
    #[arg(short = 'b', long)]
    raw_binary: bool,
    /// Tell what each bit of the critical warning is
    #[arg(short = 'H', long)]
    human_readable: bool,
    #[command(flatten)]
    output: Output,
}

/// Degrees Celsius of zero kelvin, as nvme-cli rounds it.
const ABSOLUTE_ZERO: i64 = -273;

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let &Arguments { ref subject, namespace_id: nsid, human_readable, .. } = arguments;
    let length = u32::try_from(size_of::<Smart>()).expect("a page is short");
    let page = log_page::read(subject, GetLogPage::new(LogPageId::SMART, nsid, length))?;
    if arguments.raw_binary {
        return write_raw(&page);
    }
    let smart = Smart::read_from_bytes(&page).expect("as much as was asked for");
    match arguments.output.output_format {
        Format::Normal => print!("{}", in_words(&smart, &subject.name(), nsid, human_readable)),
        Format::Json => print_json(&json_of(&smart)),
    }
    Ok(())
}

/// The bits of the critical warning, in words and in JSON.
const WARNINGS: [(&str, &str); 6] = [
    ("Available Spare", "available_spare"),
    ("Temp. Threshold", "temp_threshold"),
    ("NVM subsystem Reliability", "reliability_degraded"),
    ("Read-only", "ro"),
    ("Volatile mem. backup failed", "vmbu_failed"),
    ("Persistent Mem. RO", "pmr_ro"),
];

fn in_words(smart: &Smart, name: &str, nsid: u32, human_readable: bool) -> String {
    let mut text = format!("Smart Log for NVME device:{name} namespace-id:{nsid:x}\n");
    let mut line = |name: &str, value: String| {
        writeln!(text, "{name:<40}: {value}").expect("a string takes what is written");
    };
    line("critical_warning", format!("{:#x}", smart.critical_warning));
    if human_readable {
        for (index, (name, _)) in (0..).zip(WARNINGS) {
            let value = u8::from(bit(smart.critical_warning.into(), index));
            line(&format!("      {name}[{index}]"), value.to_string());
        }
    }
    line("temperature", degrees(smart.temperature_k.get()));
    line("available_spare", format!("{}%", smart.available_spare_percent));
    line("available_spare_threshold", format!("{}%", smart.spare_threshold_percent));
    line("percentage_used", format!("{}%", smart.used_percent));
    line("endurance group critical warning summary", format!("{:#x}", smart.endurance_warning));
    line("Data Units Read", units(smart.units_read.get()));
    line("Data Units Written", units(smart.units_written.get()));
    for (name, _, counter) in counters(smart) {
        line(name, counter.to_string());
    }
    line("Warning Temperature Time", smart.warning_temperature_minutes.to_string());
    line("Critical Composite Temperature Time", smart.critical_temperature_minutes.to_string());
    for (index, kelvin) in sensors(smart) {
        line(&format!("Temperature Sensor {index}"), degrees(kelvin));
    }
    for (index, (transitions, seconds)) in (1..).zip(thermal(smart)) {
        line(&format!("Thermal Management T{index} Trans Count"), transitions.to_string());
        line(&format!("Thermal Management T{index} Total Time"), seconds.to_string());
    }
    text
}

fn json_of(smart: &Smart) -> Value {
    let mut warning = json!({ "value": smart.critical_warning });
    for (index, (_, key)) in (0..).zip(WARNINGS) {
        warning[key] = u8::from(bit(smart.critical_warning.into(), index)).into();
    }
    let mut log = json!({
        "critical_warning": warning,
        "temperature": smart.temperature_k.get(),
        "avail_spare": smart.available_spare_percent,
        "spare_thresh": smart.spare_threshold_percent,
        "percent_used": smart.used_percent,
        "endurance_grp_critical_warning_summary": smart.endurance_warning,
        "data_units_read": json_number(smart.units_read.get()),
        "data_units_written": json_number(smart.units_written.get()),
        "warning_temp_time": smart.warning_temperature_minutes.get(),
        "critical_comp_time": smart.critical_temperature_minutes.get(),
    });
    for (_, key, counter) in counters(smart) {
        log[key] = json_number(counter);
    }
    for (index, kelvin) in sensors(smart) {
        log[format!("temperature_sensor_{index}")] = kelvin.into();
    }
    for (index, (transitions, seconds)) in (1..).zip(thermal(smart)) {
        log[format!("thm_temp{index}_trans_count")] = transitions.into();
        log[format!("thm_temp{index}_total_time")] = seconds.into();
    }
    log
}

/// In words, and in JSON, which are alike here and there.
fn counters(smart: &Smart) -> [(&'static str, &'static str, u128); 8] {
    let counter = |name, counter: &ironside_common::nvme::log_page::Counter| (name, name, counter.get());
    [
        counter("host_read_commands", &smart.host_reads),
        counter("host_write_commands", &smart.host_writes),
        counter("controller_busy_time", &smart.busy_minutes),
        counter("power_cycles", &smart.power_cycles),
        counter("power_on_hours", &smart.power_on_hours),
        counter("unsafe_shutdowns", &smart.unsafe_shutdowns),
        counter("media_errors", &smart.media_errors),
        counter("num_err_log_entries", &smart.error_log_entries),
    ]
}

/// The sensors there are, from 1, and what each measures in kelvin.
fn sensors(smart: &Smart) -> impl Iterator<Item = (usize, u16)> {
    (1..).zip(smart.sensors_k.map(|kelvin| kelvin.get())).filter(|&(_, kelvin)| kelvin != 0)
}

fn thermal(smart: &Smart) -> impl Iterator<Item = (u32, u32)> {
    let get = |counters: [zerocopy::little_endian::U32; 2]| counters.map(|counter| counter.get());
    get(smart.thermal_transitions).into_iter().zip(get(smart.thermal_seconds))
}

fn degrees(kelvin: u16) -> String {
    format!("{} °C ({kelvin} K)", i64::from(kelvin) + ABSOLUTE_ZERO)
}

/// Thousands of 512 bytes, and what they come to.
fn units(units: u128) -> String {
    const UNIT: f64 = 512_000.0;
    const PREFIXES: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let mut bytes = units as f64 * UNIT;
    let mut prefixes = PREFIXES.into_iter();
    let mut prefix = prefixes.next().unwrap_or_default();
    while bytes >= 1000.0 {
        let Some(next) = prefixes.next() else { break };
        (bytes, prefix) = (bytes / 1000.0, next);
    }
    format!("{units} ({bytes:.2} {prefix}B)")
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    fn smart() -> Smart {
        let mut smart = Smart {
            critical_warning: 0b1010,
            temperature_k: 300.into(),
            available_spare_percent: 100,
            units_written: 4.into(),
            host_writes: u128::MAX.into(),
            ..Smart::new_zeroed()
        };
        smart.sensors_k[1] = 310.into();
        smart.thermal_transitions[1] = 5.into();
        smart
    }

    #[test]
    fn health_is_told_as_nvme_cli_does() {
        let text = in_words(&smart(), "vol0", ALL_NAMESPACES, true);
        for line in [
            "Smart Log for NVME device:vol0 namespace-id:ffffffff\n",
            "critical_warning                        : 0xa\n",
            "      Read-only[3]                      : 1\n",
            "temperature                             : 27 °C (300 K)\n",
            "Data Units Written                      : 4 (2.05 MB)\n",
            "Data Units Read                         : 0 (0.00 B)\n",
            "Temperature Sensor 2                    : 37 °C (310 K)\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert!(!in_words(&smart(), "vol0", 1, false).contains("Read-only"));
    }

    #[test]
    fn health_has_nvme_cli_s_keys() {
        let json = json_of(&smart());
        assert_eq!(json["critical_warning"]["temp_threshold"], 1);
        assert_eq!(
            (&json["critical_warning"]["value"], &json["data_units_written"]),
            (&json!(10), &json!(4))
        );
        assert_eq!(json["host_write_commands"], u128::MAX.to_string());
        assert_eq!((&json["temperature_sensor_2"], &json["thm_temp2_trans_count"]), (&json!(310), &json!(5)));
        assert_eq!(json.get("temperature_sensor_1"), None);
    }
}
