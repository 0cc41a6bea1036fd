//! The command line `ironside`: one file a command, with nvme-cli's names and flags.
mod ana_log;
mod arguments;
pub mod attachment;
mod completions;
mod connect;
mod connect_all;
mod daemon;
mod disconnect;
mod discover;
mod doctor;
mod error;
mod error_log;
mod gen_dhchap_key;
mod get_feature;
mod get_log;
mod hostnqn;
mod id_ctrl;
mod id_ns;
mod identify;
mod inquiry;
mod list;
mod list_subsys;
mod log;
mod log_page;
mod man;
mod ns_descs;
mod recover;
mod rekey;
mod reserve;
mod resv_notif_log;
mod resv_report;
mod secrets;
mod smart_log;
mod table;

use clap::{Parser, Subcommand};

pub use error::{Class, CliError};

/// Attach NVMe namespaces over RDMA as local block devices.
///
/// Works on any machine: where there is no RDMA adapter, software RDMA (iWARP over TCP) in user space takes
/// its place. Commands and flags are named as in nvme-cli.
#[derive(Debug, Parser)]
#[command(name = "ironside", version, max_term_width = 100)]
#[command(after_help = "Exit status: 0 done, 1 failed, 2 wrong usage, 3 the target cannot be reached, \
                        4 the target refuses, 5 the device is in use, 6 the system lacks something, \
                        7 there is no such attachment.")]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Discover(discover::Arguments),
    #[command(visible_alias = "attach")]
    Connect(connect::Arguments),
    ConnectAll(connect_all::Arguments),
    Disconnect(disconnect::Arguments),
    DisconnectAll(disconnect::AllArguments),
    Recover(recover::Arguments),
    Rekey(rekey::Arguments),
    List(list::Arguments),
    ListSubsys(list_subsys::Arguments),
    Doctor(doctor::Arguments),
    IdCtrl(id_ctrl::Arguments),
    IdNs(id_ns::Arguments),
    NsDescs(ns_descs::Arguments),
    GetLog(get_log::Arguments),
    SmartLog(smart_log::Arguments),
    ErrorLog(error_log::Arguments),
    AnaLog(ana_log::Arguments),
    GetFeature(get_feature::Arguments),
    ResvRegister(reserve::Register),
    ResvAcquire(reserve::Acquire),
    ResvRelease(reserve::Release),
    ResvReport(resv_report::Arguments),
    ResvNotifLog(resv_notif_log::Arguments),
    ShowHostnqn(hostnqn::Show),
    GenHostnqn(hostnqn::Generate),
    GenDhchapKey(gen_dhchap_key::Arguments),
    CheckDhchapKey(gen_dhchap_key::CheckArguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
    /// The process behind an attachment. Started by connect, never by hand.
    #[command(hide = true)]
    AttachDaemon,
}

impl Cli {
    /// Does what was asked.
    ///
    /// # Errors
    /// What kept it from being done; [`CliError::class`] gives the exit status.
    pub fn run(self) -> Result<(), CliError> {
        match self.command {
            Command::Discover(arguments) => discover::run(&arguments),
            Command::Connect(arguments) => connect::run(&arguments),
            Command::ConnectAll(arguments) => connect_all::run(&arguments),
            Command::DisconnectAll(arguments) => disconnect::run_all(&arguments),
            Command::Disconnect(arguments) => disconnect::run(&arguments),
            Command::Recover(arguments) => recover::run(&arguments),
            Command::Rekey(arguments) => rekey::run(&arguments),
            Command::List(arguments) => list::run(&arguments),
            Command::ListSubsys(arguments) => list_subsys::run(&arguments),
            Command::Doctor(arguments) => doctor::run(&arguments),
            Command::IdCtrl(arguments) => id_ctrl::run(&arguments),
            Command::IdNs(arguments) => id_ns::run(&arguments),
            Command::NsDescs(arguments) => ns_descs::run(&arguments),
            Command::GetLog(arguments) => get_log::run(&arguments),
            Command::SmartLog(arguments) => smart_log::run(&arguments),
            Command::ErrorLog(arguments) => error_log::run(&arguments),
            Command::AnaLog(arguments) => ana_log::run(&arguments),
            Command::GetFeature(arguments) => get_feature::run(&arguments),
            Command::ResvRegister(arguments) => reserve::register(&arguments),
            Command::ResvAcquire(arguments) => reserve::acquire(&arguments),
            Command::ResvRelease(arguments) => reserve::release(&arguments),
            Command::ResvReport(arguments) => resv_report::run(&arguments),
            Command::ResvNotifLog(arguments) => resv_notif_log::run(&arguments),
            Command::ShowHostnqn(arguments) => hostnqn::show(&arguments),
            Command::GenHostnqn(arguments) => hostnqn::generate(&arguments),
            Command::GenDhchapKey(arguments) => gen_dhchap_key::run(&arguments),
            Command::CheckDhchapKey(arguments) => gen_dhchap_key::check(&arguments),
            Command::Completions(arguments) => completions::run(&arguments),
            Command::Man(arguments) => man::run(&arguments),
            Command::AttachDaemon => daemon::run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_makes_sense() {
        Cli::command().debug_assert();
    }

    #[test]
    fn nvme_cli_s_words_are_understood() {
        let line = "ironside connect -t rdma -a 192.0.2.1 -s 4420 -n nqn.2026-11.org.example:a \
                    -q nqn.2014-08.org.nvmexpress:uuid:6f9619ff-8b86-d011-b42d-00cf4fc964ff \
                    -I 6f9619ff-8b86-d011-b42d-00cf4fc964ff -i 2 -Q 64 -k 5 -c 1 -l -1 -F 4 -d -D -o json -S DHHC-1:00:a: -C DHHC-1:00:b:";
        let words = line.split_whitespace();
        assert!(Cli::try_parse_from(words.clone()).is_ok());
        assert!(
            Cli::try_parse_from(words.map(|word| if word == "connect" { "attach" } else { word })).is_ok()
        );
        for line in [
            "ironside discover -t rdma -a 127.0.0.1 -s 4420 --provider ibv -o json",
            "ironside doctor -a 127.0.0.1 -s 4420 --provider iwarp -o json",
            "ironside disconnect -n nqn.2026-11.org.example:a",
            "ironside disconnect -d /dev/loop0 --force",
            "ironside connect-all -t rdma -a 192.0.2.1 -s 4420 --via nbd -i 2 -o json",
            "ironside connect-all",
            "ironside disconnect-all --force",
            "ironside list-subsys -o json",
            "ironside list-subsys /dev/loop0",
            "ironside show-hostnqn",
            "ironside gen-hostnqn",
            "ironside recover vol0 -o json",
            "ironside recover",
            "ironside rekey vol0 -o json",
            "ironside rekey",
            "ironside list -o normal",
            "ironside id-ctrl /dev/loop0 --provider auto --output-format=json",
            "ironside gen-dhchap-key --hmac 1 --key-length 32 --nqn nqn.2026-11.org.example:a",
            "ironside check-dhchap-key --key DHHC-1:00:AAEC:",
            "ironside id-ns -a ::1 -n nqn.2026-11.org.example:a --namespace-id 1 --provider iwarp",
            "ironside get-log /dev/loop0 -i 2 -l 512 -o 0 --lsp=0 --rae -b",
            "ironside get-log /dev/loop0 --log-id=0x70 --log-len=1024 -L 4096",
            "ironside smart-log /dev/loop0 -o json -H",
            "ironside error-log -a ::1 -n nqn.2026-11.org.example:a -e 4 -o json",
            "ironside ana-log /dev/loop0 -g -o json",
            "ironside ns-descs /dev/loop0 -o json -v",
            "ironside get-feature /dev/loop0 -f 7 -s 0 -H",
            "ironside get-feature /dev/loop0 --feature-id=0x81 --sel=1 -c 1 -l 16 -b",
            "ironside resv-register /dev/loop0 --nrkey=0x1f -r 0 --cptpl=3 --iekey",
            "ironside resv-acquire -a ::1 -n nqn.2026-11.org.example:a --nsid 1 -c 1 --rtype 3 --racqa 1 -p 0x2",
            "ironside resv-release /dev/loop0 --crkey=1 --rtype=1 --rrela=0",
            "ironside resv-report /dev/loop0 --eds -o json",
            "ironside resv-notif-log /dev/loop0 -o json",
        ] {
            assert!(Cli::try_parse_from(line.split_whitespace()).is_ok(), "{line}");
        }
    }
}
