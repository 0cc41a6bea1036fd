//! The whole machine, driven as hosts drive it.
use ironside_common::nvme::ALL_NAMESPACES;
use ironside_common::nvme::admin::{Cns, GetFeatures, GetLogPage, Identify, SetFeatures};
use ironside_common::nvme::async_event::AsyncEvent;
use ironside_common::nvme::discovery;
use ironside_common::nvme::fabrics::{CNTLID_DYNAMIC, Connect, ConnectData};
use ironside_common::nvme::feature::{EventMask, FeatureId, Select};
use ironside_common::nvme::identify::{
    Controller as ControllerData, ControllerType, Descriptor, IndependentNamespace,
    Namespace as NamespaceData, active_namespaces, descriptors,
};
use ironside_common::nvme::log_page::{ChangedNamespaces, Effects, ErrorEntry, LogPageId, Smart};
use ironside_common::nvme::property::{Capabilities, Configuration, ControllerStatus, PropertyId};
use proptest::prelude::*;
use uuid::Uuid;
use zerocopy::FromBytes;

use super::*;
use crate::catalog::tests::{namespace, nqn, subsystem};
use crate::catalog::{Hosts, Namespace};

const HERE: &[&str] = &["127.0.0.1:4420"];

/// A host which remembers nothing but what it needs to ask.
struct Host {
    controller: Controller,
    now: Time,
}

fn catalog(nsids: &[u32]) -> Arc<Catalog> {
    let subsystems = vec![
        subsystem("sub", Hosts::Any, HERE, nsids),
        subsystem("private", Hosts::Listed(vec![nqn("friend")]), HERE, &[]),
    ];
    Arc::new(Catalog::new(7, subsystems).unwrap())
}

fn admission() -> Admission {
    Admission {
        cntlid: 5,
        local: HERE[0].parse().unwrap(),
        queue_depth: 128,
        in_capsule: 4096,
        transfer_max: 1 << 20,
        io_queues_max: 4,
    }
}

fn command(qid: u16) -> Connect {
    Connect {
        record_format: 0,
        qid,
        sqsize: 31,
        priority_class: 0,
        disable_sq_flow_control: false,
        kato_ms: 5000,
    }
}

fn data(cntlid: u16, subnqn: &Nqn) -> ConnectData {
    ConnectData::new(Uuid::from_u128(0xFEED), cntlid, subnqn, &nqn("host"))
}

fn connect(catalog: &Arc<Catalog>, connect: &Connect, data: &ConnectData) -> Result<Controller, Refusal> {
    Controller::connect(Time::ZERO, catalog, &admission(), connect, data)
}

impl Host {
    fn new(catalog: &Arc<Catalog>, subnqn: &Nqn) -> Self {
        let controller = connect(catalog, &command(0), &data(CNTLID_DYNAMIC, subnqn)).unwrap();
        Self { controller, now: Time::ZERO }
    }

    fn enabled(catalog: &Arc<Catalog>) -> Self {
        let mut host = Self::new(catalog, &nqn("sub"));
        host.set(Configuration::new(true));
        host
    }

    /// Result and data, or the status.
    fn ask(&mut self, command: &Command) -> Result<(u64, Vec<u8>), Status> {
        let transfer = admin::transfer(command)?;
        let length = transfer.length() as usize;
        let mut out = vec![0xEE; if matches!(transfer, Transfer::ToHost(_)) { length } else { 0 }];
        match self.controller.handle_command(self.now, command, &vec![0; length - out.len()], &mut out) {
            Outcome::Complete { status, result, length } if status.is_success() => {
                out.truncate(length as usize);
                Ok((result, out))
            }
            Outcome::Complete { status, result: 0, length: 0 } => Err(status.with_more(false)),
            other => panic!("{other:?} for {command}"),
        }
    }

    fn get(&mut self, property: PropertyId) -> u64 {
        self.ask(&PropertyGet::new(property).to_command(1)).unwrap().0
    }

    fn set(&mut self, configuration: Configuration) {
        let set = PropertySet::new(PropertyId::CC, configuration.0.into());
        assert_eq!(self.ask(&set.to_command(2)), Ok((0, vec![])));
    }

    fn status(&mut self) -> ControllerStatus {
        ControllerStatus(self.get(PropertyId::CSTS) as u32)
    }

    fn identify(&mut self, cns: Cns, nsid: u32) -> Result<Vec<u8>, Status> {
        let (_, data) = self.ask(&Identify::new(cns, nsid).to_command(3))?;
        assert_eq!(data.len(), 4096);
        Ok(data)
    }

    fn log(&mut self, get: GetLogPage) -> Result<Vec<u8>, Status> {
        let (_, data) = self.ask(&get.to_command(4))?;
        assert_eq!(data.len() as u64, get.length);
        Ok(data)
    }

    fn feature(&mut self, feature: FeatureId, value: u32) -> Result<u64, Status> {
        self.ask(&SetFeatures::new(feature, value).to_command(5)).map(|(result, _)| result)
    }

    fn leave_event_request(&mut self) -> Outcome {
        let request = Command::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 31, 0);
        self.controller.handle_command(self.now, &request, &[], &mut [])
    }

    fn told(&mut self) -> Option<AsyncEvent> {
        match self.controller.poll_event()? {
            Event::AsyncEvent { result } => Some(AsyncEvent::from_dword(result)),
            other => panic!("{other:?}"),
        }
    }
}

fn read<T: FromBytes>(bytes: &[u8]) -> T {
    T::read_from_prefix(bytes).unwrap().0
}

/// What `nvme connect` of a Linux 6 host does, step by step.
#[test]
fn a_linux_host_connects() {
    let mut host = Host::new(&catalog(&[1, 2]), &nqn("sub"));
    assert_eq!(host.controller.cntlid(), 5);

    let capabilities = Capabilities(host.get(PropertyId::CAP));
    assert_eq!(capabilities.queue_depth(), 128);
    assert!(capabilities.nvm_command_set());
    host.set(Configuration(0x0046_0000));
    assert!(!host.status().ready());
    assert_eq!(host.identify(Cns::CONTROLLER, 0), Err(Status::COMMAND_SEQUENCE));
    host.set(Configuration(0x0046_0001));
    assert!(host.status().ready() && host.controller.is_ready());
    assert_eq!(host.get(PropertyId::VS), 0x0002_0000);

    let identified: ControllerData = read(&host.identify(Cns::CONTROLLER, 0).unwrap());
    assert_controller_suits_linux(&identified);
    let effects: Effects = read(&host.log(GetLogPage::new(LogPageId::EFFECTS, 0, 4096)).unwrap());
    assert_eq!((effects.io[1].get(), effects.io[2].get(), effects.io[0x19].get()), (3, 1, 3));
    assert_eq!(effects.io[0x0D].get(), 1, "Reservation Register");
    let smart: Smart = read(&host.log(GetLogPage::new(LogPageId::SMART, ALL_NAMESPACES, 512)).unwrap());
    assert_eq!(smart.critical_warning, 0);
    assert_eq!(host.feature(FeatureId::NUMBER_OF_QUEUES, 0x0001_0001), Ok(0x0001_0001));
    for qid in 1..=2 {
        host.controller.join_queue(host.now, &command(qid), &data(5, &nqn("sub"))).unwrap();
    }
    let wanted = identified.oaes.get() & 0x8000_0B00;
    assert_eq!(host.feature(FeatureId::ASYNC_EVENT_CONFIGURATION, wanted), Ok(0));
    assert_eq!(host.leave_event_request(), Outcome::Hold);
    assert_scan_finds_two_namespaces(&mut host);

    // And `nvme disconnect`.
    host.set(Configuration(0x0046_4001));
    assert_eq!(host.status(), ControllerStatus::new(false, false, true));
    assert_eq!(host.controller.poll_event(), Some(Event::Forget));
    assert_eq!(host.controller.poll_event(), Some(Event::Disabled));
    assert_eq!(host.controller.poll_event(), None);
}

fn assert_controller_suits_linux(identified: &ControllerData) {
    assert_eq!(identified.cntlid.get(), 5);
    assert_eq!(identified.controller_type(), ControllerType::IO);
    assert_ne!(identified.kas_100ms.get(), 0);
    assert_eq!((identified.ioccsz_16b.get(), identified.iorcsz_16b.get()), (260, 1));
    assert_eq!((identified.icdoff_16b.get(), identified.msdbd, identified.mdts), (0, 1, 8));
    assert_eq!((identified.maxcmd.get(), identified.sgls.get()), (128, 0x0010_0005));
    assert_eq!((identified.cmic & 0b1010, identified.oncs.get()), (0b1010, 0x1ED));
    assert_eq!((identified.oacs.get(), identified.crdt), Default::default());
    assert_eq!(identified.fuses.get(), 1, "Compare and Write");
    assert!(identified.has_volatile_write_cache());
    assert_eq!(Nqn::from_field(&identified.subnqn), Ok(nqn("sub")));
    assert_eq!(identified.serial, *b"SERIAL              ");
    assert!(identified.model.starts_with(b"Ironside   "));
}

fn assert_scan_finds_two_namespaces(host: &mut Host) {
    assert!(host.identify(Cns::COMMAND_SET_CONTROLLER, 0).is_ok());
    let list = host.identify(Cns::ACTIVE_NAMESPACES, 0).unwrap();
    assert!(active_namespaces(&list).iter().eq([1, 2]));
    let list = host.identify(Cns::ACTIVE_NAMESPACES, 1).unwrap();
    assert!(active_namespaces(&list).iter().eq([2]));
    for nsid in [1, 2] {
        let uuid = namespace(nsid, 1).uuid;
        let list = host.identify(Cns::NAMESPACE_DESCRIPTORS, nsid).unwrap();
        let expected = [Descriptor::Uuid(uuid), Descriptor::Nguid(uuid), Descriptor::CommandSet(0)];
        assert!(descriptors(&list).eq(expected));
        let independent: IndependentNamespace =
            read(&host.identify(Cns::INDEPENDENT_NAMESPACE, nsid).unwrap());
        assert_eq!((independent.nstat & 1, independent.nmic & 1), (1, 1));
        assert_eq!(independent.nsfeat, IndependentNamespace::NO_VOLATILE_WRITE_CACHE);
        let data: NamespaceData = read(&host.identify(Cns::NAMESPACE, nsid).unwrap());
        assert_eq!((data.nsze.get(), data.ncap.get(), data.nmic & 1), (1000, 1000, 1));
        assert_eq!(data.format().unwrap().block_shift, 9);
        assert_eq!(data.nguid(), Some(uuid));
    }
}

#[test]
fn every_other_structure_or_a_refusal() {
    let mut host = Host::enabled(&catalog(&[1, 9]));
    assert!(host.identify(Cns::COMMAND_SETS, 0).unwrap().starts_with(&[1, 0]));
    let list = host.identify(Cns::COMMAND_SET_ACTIVE_NAMESPACES, 0).unwrap();
    assert!(active_namespaces(&list).iter().eq([1, 9]));
    assert!(host.identify(Cns::COMMAND_SET_NAMESPACE, 1).is_ok());
    let inactive: NamespaceData = read(&host.identify(Cns::NAMESPACE, 5).unwrap());
    assert!(!inactive.is_active());
    for (cns, nsid, status) in [
        (Cns::NAMESPACE, ALL_NAMESPACES, Status::INVALID_NAMESPACE),
        (Cns::NAMESPACE, 0, Status::INVALID_NAMESPACE),
        (Cns::NAMESPACE, 1025, Status::INVALID_NAMESPACE),
        (Cns::NAMESPACE_DESCRIPTORS, 5, Status::INVALID_NAMESPACE),
        (Cns::ACTIVE_NAMESPACES, ALL_NAMESPACES, Status::INVALID_NAMESPACE),
        (Cns::ACTIVE_NAMESPACES, ALL_NAMESPACES - 1, Status::INVALID_NAMESPACE),
        (Cns(0x04), 0, Status::INVALID_FIELD),
        (Cns(0xFF), 0, Status::INVALID_FIELD),
    ] {
        assert_eq!(host.identify(cns, nsid), Err(status), "{cns} {nsid}");
    }
    let zoned = Identify { csi: 2, ..Identify::new(Cns::COMMAND_SET_CONTROLLER, 0) };
    assert_eq!(host.ask(&zoned.to_command(1)), Err(Status::INVALID_FIELD));
}

#[test]
fn connect_says_what_is_wrong_with_it() {
    let catalog = catalog(&[1]);
    let sub = nqn("sub");
    let refused = |changed: Connect, data: &ConnectData| connect(&catalog, &changed, data).err().unwrap();
    let good = data(CNTLID_DYNAMIC, &sub);

    let format = refused(Connect { record_format: 1, ..command(0) }, &good);
    assert_eq!(format, Status::CONNECT_INCOMPATIBLE_FORMAT.into());
    for (connect, data, dword) in [
        (Connect { sqsize: 0, ..command(0) }, good, 44),
        (command(1), good, 42),
        (command(0), data(5, &sub), 0x0001_0010),
        (command(0), data(CNTLID_DYNAMIC, &nqn("unknown")), 0x0001_0100),
        (command(0), ConnectData { subnqn: [b'x'; 256], ..good }, 0x0001_0100),
        (command(0), ConnectData { hostnqn: [0; 256], ..good }, 0x0001_0200),
    ] {
        let refusal = refused(connect, &data);
        assert_eq!((refusal.status, refusal.result), (Status::CONNECT_INVALID_PARAMETERS, dword));
    }
    let stranger = refused(command(0), &data(CNTLID_DYNAMIC, &nqn("private")));
    assert_eq!((stranger.status, stranger.result), (Status::CONNECT_INVALID_HOST, 0x0001_0200));
    assert_eq!(stranger.to_string(), "Connect Invalid Host (do not retry): the host NQN");

    let elsewhere = Admission { local: "127.0.0.1:4421".parse().unwrap(), ..admission() };
    let refusal = Controller::connect(Time::ZERO, &catalog, &elsewhere, &command(0), &good).err().unwrap();
    assert_eq!(refusal, Refusal::parameter_in_data(256));
}

#[test]
fn io_queues_join_only_their_own_controller() {
    let mut host = Host::new(&catalog(&[1]), &nqn("sub"));
    let join = |host: &mut Host, connect: &Connect, data: &ConnectData| {
        host.controller.join_queue(host.now, connect, data)
    };
    let good = data(5, &nqn("sub"));
    let early = join(&mut host, &command(1), &good);
    assert_eq!(early, Err(Refusal::parameter_in_command(42)), "not enabled yet");
    host.set(Configuration::new(true));
    for (connect, data, refusal) in [
        (Connect { record_format: 1, ..command(1) }, good, Status::CONNECT_INCOMPATIBLE_FORMAT.into()),
        (Connect { sqsize: 0, ..command(1) }, good, Refusal::parameter_in_command(44)),
        (Connect { sqsize: 128, ..command(1) }, good, Refusal::parameter_in_command(44)),
        (command(0), good, Refusal::parameter_in_command(42)),
        (command(5), good, Refusal::parameter_in_command(42)),
        (command(1), data(6, &nqn("sub")), Refusal::parameter_in_data(16)),
        (command(1), data(5, &nqn("private")), Refusal::parameter_in_data(16)),
        (command(1), ConnectData { hostnqn: nqn("x").to_field(), ..good }, Refusal::parameter_in_data(16)),
        (command(1), ConnectData { host_id: [9; 16], ..good }, Refusal::parameter_in_data(16)),
    ] {
        assert_eq!(join(&mut host, &connect, &data), Err(refusal));
    }
    let largest = Connect { sqsize: 127, ..command(4) };
    assert_eq!(join(&mut host, &largest, &good), Ok(()));
    assert_eq!(join(&mut host, &largest, &good), Err(Status::COMMAND_SEQUENCE.into()));
    assert_eq!(host.feature(FeatureId::NUMBER_OF_QUEUES, 0), Err(Status::COMMAND_SEQUENCE));
    host.controller.queue_left(4);
    assert_eq!(join(&mut host, &largest, &good), Ok(()));
}

#[test]
fn features_answer_as_hosts_expect() {
    let mut host = Host::enabled(&catalog(&[1]));
    assert_eq!(host.feature(FeatureId::NUMBER_OF_QUEUES, 0x001F_000F), Ok(0x0003_0003));
    assert_eq!(host.feature(FeatureId::NUMBER_OF_QUEUES, 0x0007_0001), Ok(0x0001_0001));
    assert_eq!(host.feature(FeatureId::NUMBER_OF_QUEUES, 0xFFFF_FFFF), Err(Status::INVALID_FIELD));
    assert_eq!(host.feature(FeatureId::KEEP_ALIVE_TIMER, 30_000), Ok(0));
    // A host may ask for health events too, which there are none of.
    assert_eq!(host.feature(FeatureId::ASYNC_EVENT_CONFIGURATION, 0x1FF), Ok(0));
    assert_eq!(host.feature(FeatureId::HOST_IDENTIFIER, 1), Err(Status::COMMAND_SEQUENCE));
    assert_eq!(host.feature(FeatureId::VOLATILE_WRITE_CACHE, 1), Ok(0));
    assert_eq!(host.feature(FeatureId::VOLATILE_WRITE_CACHE, 0), Err(Status::FEATURE_NOT_CHANGEABLE));
    assert_eq!(host.feature(FeatureId::TIMESTAMP, 0), Ok(0));
    assert_eq!(host.feature(FeatureId(0xC0), 0), Err(Status::INVALID_FIELD));
    let saved = SetFeatures { save: true, ..SetFeatures::new(FeatureId::KEEP_ALIVE_TIMER, 1) };
    assert_eq!(host.ask(&saved.to_command(0)), Err(Status::FEATURE_NOT_SAVEABLE));

    let mut get = |get: GetFeatures| host.ask(&get.to_command(0));
    assert_eq!(get(GetFeatures::new(FeatureId::NUMBER_OF_QUEUES)), Ok((0x0001_0001, vec![])));
    assert_eq!(get(GetFeatures::new(FeatureId::KEEP_ALIVE_TIMER)), Ok((30_000, vec![])));
    assert_eq!(get(GetFeatures::new(FeatureId::ASYNC_EVENT_CONFIGURATION)), Ok((0x1FF, vec![])));
    assert_eq!(get(GetFeatures::new(FeatureId::VOLATILE_WRITE_CACHE)), Ok((1, vec![])));
    assert_eq!(get(GetFeatures::new(FeatureId::ARBITRATION)), Ok((0, vec![])));
    let host_id = GetFeatures { value: 1, ..GetFeatures::new(FeatureId::HOST_IDENTIFIER) };
    assert_eq!(get(host_id), Ok((0, Uuid::from_u128(0xFEED).as_bytes().to_vec())));
    assert_eq!(get(GetFeatures::new(FeatureId::HOST_IDENTIFIER)), Err(Status::INVALID_FIELD));
    let default = GetFeatures { select: Select::DEFAULT, ..GetFeatures::new(FeatureId::KEEP_ALIVE_TIMER) };
    assert_eq!(get(default), Err(Status::INVALID_FIELD));
}

#[test]
fn a_changed_namespace_is_told_once_and_listed() {
    let mut host = Host::enabled(&catalog(&[1, 2, 3]));
    host.feature(FeatureId::ASYNC_EVENT_CONFIGURATION, EventMask::NAMESPACE_ATTRIBUTES.0).unwrap();
    assert_eq!(host.leave_event_request(), Outcome::Hold);
    host.controller.catalog_changed(&catalog(&[1, 2, 3]));
    assert_eq!(host.told(), None, "nothing changed");

    host.controller.catalog_changed(&catalog(&[1, 3, 4]));
    assert_eq!(host.told(), Some(AsyncEvent::NAMESPACE_ATTRIBUTES_CHANGED));
    let resized = vec![namespace(1, 1000), Namespace { read_only: true, ..namespace(3, 1000) }];
    let listen = vec![HERE[0].parse().unwrap()];
    let resized = Subsystem::new(nqn("sub"), "SERIAL", Hosts::Any, listen, resized).unwrap();
    host.controller.catalog_changed(&Arc::new(Catalog::new(9, vec![resized]).unwrap()));
    assert_eq!(host.leave_event_request(), Outcome::Hold);
    assert_eq!(host.told(), None, "told before the list was read");

    let list = GetLogPage::new(LogPageId::CHANGED_NAMESPACES, ALL_NAMESPACES, 4096);
    for get in [GetLogPage { retain_event: true, ..list }, list] {
        let page: ChangedNamespaces = read(&host.log(get).unwrap());
        assert!(page.changed().unwrap().eq([2, 3, 4]));
    }
    let page: ChangedNamespaces = read(&host.log(list).unwrap());
    assert_eq!(page.changed().unwrap().count(), 0);
    host.controller.catalog_changed(&catalog(&[1, 3]));
    assert_eq!(host.told(), Some(AsyncEvent::NAMESPACE_ATTRIBUTES_CHANGED));
}

#[test]
fn another_group_is_a_change_of_namespace_and_of_access() {
    let mut host = Host::enabled(&catalog(&[1]));
    let wanted = EventMask::NAMESPACE_ATTRIBUTES.0 | EventMask::ANA.0;
    host.feature(FeatureId::ASYNC_EVENT_CONFIGURATION, wanted).unwrap();
    assert_eq!([(); 2].map(|()| host.leave_event_request()), [Outcome::Hold; 2]);
    let listen = vec![HERE[0].parse().unwrap()];
    let regrouped = vec![Namespace { ana_group: 9, ..namespace(1, 1000) }];
    let regrouped = Subsystem::new(nqn("sub"), "SERIAL", Hosts::Any, listen, regrouped).unwrap();
    host.controller.catalog_changed(&Arc::new(Catalog::new(9, vec![regrouped]).unwrap()));
    assert_eq!(host.told(), Some(AsyncEvent::NAMESPACE_ATTRIBUTES_CHANGED));
    assert_eq!(host.told(), Some(AsyncEvent::ANA_CHANGED));
    let log = host.log(GetLogPage::new(LogPageId::ANA, ALL_NAMESPACES, 56)).unwrap();
    assert_eq!((log[0], log[8], log[16], log[48]), (1, 1, 9, 1));
}

#[test]
fn a_controller_ends_with_its_subsystem_its_permission_or_its_listener() {
    let empty = Arc::new(Catalog::new(8, vec![]).unwrap());
    let closed = vec![subsystem("sub", Hosts::Listed(vec![nqn("friend")]), HERE, &[1])];
    let closed = Arc::new(Catalog::new(8, closed).unwrap());
    let moved = vec![subsystem("sub", Hosts::Any, &["192.0.2.9:4420"], &[1])];
    let moved = Arc::new(Catalog::new(8, moved).unwrap());
    for next in [empty, closed, moved] {
        let mut host = Host::enabled(&catalog(&[1]));
        host.controller.catalog_changed(&next);
        assert!(matches!(host.controller.poll_event(), Some(Event::Fatal { .. })));
    }
}

#[test]
fn a_silent_host_loses_its_controller() {
    let at = |seconds: u64| Time::from_nanos(seconds * 1_000_000_000);
    let mut host = Host::enabled(&catalog(&[1]));
    assert_eq!(host.controller.poll_timeout(), Some(at(6)));
    host.now = at(3);
    assert!(host.ask(&Command::new(AdminOpcode::KEEP_ALIVE.0, 9, 0)).is_ok());
    host.controller.note_activity(at(4));
    host.controller.handle_timeout(at(9));
    assert_eq!(host.controller.poll_event(), None);
    host.controller.handle_timeout(at(10));
    assert!(matches!(host.controller.poll_event(), Some(Event::Fatal { .. })));
    assert_eq!(host.controller.poll_timeout(), None);
    assert!(host.status().fatal());
}

#[test]
fn aborts_go_to_queues_that_are_there() {
    let mut host = Host::enabled(&catalog(&[1]));
    host.controller.join_queue(host.now, &command(2), &data(5, &nqn("sub"))).unwrap();
    let mut abort = |sqid| {
        let command = Abort { sqid, cid: 7 }.to_command(1);
        host.controller.handle_command(host.now, &command, &[], &mut [])
    };
    assert_eq!(abort(2), Outcome::Abort { sqid: 2, cid: 7 });
    let not_aborted = Outcome::Complete { status: Status::SUCCESS, result: 1, length: 0 };
    for sqid in [0, 1, 3, u16::MAX] {
        assert_eq!(abort(sqid), not_aborted);
    }
}

#[test]
fn what_failed_is_in_the_error_log() {
    let mut host = Host::enabled(&catalog(&[1]));
    let wrong = Identify::new(Cns(0xFE), 77).to_command(0x1234);
    let outcome = host.controller.handle_command(host.now, &wrong, &[], &mut [0; 4096]);
    let status = Status::INVALID_FIELD.with_more(true);
    assert_eq!(outcome, Outcome::Complete { status, result: 0, length: 0 });
    assert!(host.ask(&Command::new(AdminOpcode::KEEP_ALIVE.0, 1, 0)).is_ok());
    let log = host.log(GetLogPage::new(LogPageId::ERROR, 0, 128)).unwrap();
    let (first, second): (ErrorEntry, ErrorEntry) = (read(&log), read(&log[64..]));
    assert_eq!((first.count.get(), first.cid.get(), first.nsid.get()), (1, 0x1234, 77));
    assert_eq!(first.status(), Status::INVALID_FIELD);
    assert_eq!(second.count.get(), 0);
}

#[test]
fn what_its_queues_did_is_in_its_logs() {
    let mut host = Host::enabled(&catalog(&[1]));
    let status_field = Status::LBA_OUT_OF_RANGE.to_field();
    host.controller.note_failures(2, 3, Failure { cid: 0x77, status_field, nsid: 1 });
    host.controller.note_counts(Counts {
        reads: 5,
        writes: 6,
        units_read: 1001,
        units_written: 1000,
        media_errors: 1,
        ..Counts::default()
    });
    let last: ErrorEntry = read(&host.log(GetLogPage::new(LogPageId::ERROR, 0, 64)).unwrap());
    assert_eq!((last.count.get(), last.sqid.get(), last.cid.get(), last.nsid.get()), (3, 2, 0x77, 1));
    assert_eq!(last.status(), Status::LBA_OUT_OF_RANGE);
    let smart: Smart = read(&host.log(GetLogPage::new(LogPageId::SMART, ALL_NAMESPACES, 512)).unwrap());
    assert_eq!((smart.host_reads.get(), smart.host_writes.get()), (5, 6));
    assert_eq!((smart.units_read.get(), smart.units_written.get()), (2, 1));
    assert_eq!((smart.media_errors.get(), smart.error_log_entries.get()), (1, 3));
}

#[test]
fn what_a_controller_does_not_do_it_refuses() {
    let mut host = Host::enabled(&catalog(&[1]));
    let mut raw = |command: Command| match host.controller.handle_command(host.now, &command, &[], &mut []) {
        Outcome::Complete { status, .. } => status.with_more(false),
        other => panic!("{other:?}"),
    };
    for opcode in [0x00, 0x01, 0x04, 0x05, 0x0D, 0x80, 0x81, 0xC0] {
        assert_eq!(raw(Command::new(opcode, 0, 0)), Status::INVALID_OPCODE);
    }
    assert_eq!(raw(Command::fabrics(FabricsType::CONNECT, 0)), Status::COMMAND_SEQUENCE);
    assert_eq!(raw(Command::fabrics(FabricsType::AUTHENTICATION_SEND, 0)), Status::INVALID_OPCODE);
    assert_eq!(raw(Command::fabrics(FabricsType(0xC0), 0)), Status::INVALID_OPCODE);
    assert_eq!(raw(Command { flags: 0x41, ..Command::new(0x18, 0, 0) }), Status::INVALID_FIELD);
    for _ in 0..4 {
        assert_eq!(host.leave_event_request(), Outcome::Hold);
    }
    let full = host.ask(&Command::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 9, 0));
    assert_eq!(full, Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED));
    for page in [LogPageId::DISCOVERY, LogPageId(0xC0)] {
        assert_eq!(host.log(GetLogPage::new(page, 0, 64)), Err(Status::INVALID_LOG_PAGE));
    }
    let odd = GetLogPage { offset: 2, ..GetLogPage::new(LogPageId::SMART, 0, 512) };
    assert_eq!(host.log(odd), Err(Status::INVALID_FIELD));
    let beyond = GetLogPage { offset: 516, ..odd };
    assert_eq!(host.log(beyond), Err(Status::INVALID_FIELD));
    let foreign = GetLogPage::new(LogPageId::SMART, 5, 512);
    assert_eq!(host.log(foreign), Err(Status::INVALID_NAMESPACE));
}

proptest! {
    /// Whatever a host sends, in whichever state, it gets an answer, and never more data than it has room for.
    #[test]
    fn any_command_is_answered(
        commands in proptest::collection::vec((any::<[u8; 64]>(), 0usize..12, 0usize..6), 1..40),
        discovery: bool,
    ) {
        let opcodes = [0x02, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18, 0x7F, 0x06, 0x02, 0x7F, 0x0A];
        let subnqn = if discovery { Nqn::discovery() } else { nqn("sub") };
        let mut host = Host::new(&catalog(&[1, 2]), &subnqn);
        host.set(Configuration::new(true));
        for (bytes, opcode, room) in commands {
            let mut command = Command::from_capsule(&bytes).unwrap();
            (command.opcode, command.flags) = (opcodes[opcode], Command::SGL_FLAGS);
            // Small numbers more often than chance would have them.
            command.nsid = (command.nsid.get() % 9).into();
            let low = command.cdw10.get() % 0x1D;
            command.cdw10 = (command.cdw10.get() & 0x00FF_0000 | low).into();
            let mut out = vec![0; [0, 4, 16, 512, 4096, 8192][room]];
            let outcome = host.controller.handle_command(host.now, &command, &[], &mut out);
            if let Outcome::Complete { length, .. } = outcome {
                prop_assert!(length as usize <= out.len());
            }
            while host.controller.poll_event().is_some() {}
        }
    }
}

/// As libnvme reads it: the head, the entries, the head again.
#[test]
fn a_discovery_controller_shows_the_log_and_nothing_else() {
    let mut host = Host::new(&catalog(&[1]), &Nqn::discovery());
    assert_eq!(host.controller.poll_timeout(), Some(Time::from_nanos(6_000_000_000)));
    host.set(Configuration(1));
    assert!(host.status().ready());
    let identified: ControllerData = read(&host.identify(Cns::CONTROLLER, 0).unwrap());
    assert_eq!(identified.controller_type(), ControllerType::DISCOVERY);
    assert_eq!((identified.mdts, identified.nn.get(), identified.oaes.get()), (0, 0, 0x8000_0000));
    assert_eq!(Nqn::from_field(&identified.subnqn), Ok(Nqn::discovery()));
    for cns in [Cns::NAMESPACE, Cns::ACTIVE_NAMESPACES, Cns::COMMAND_SETS] {
        assert_eq!(host.identify(cns, 0), Err(Status::INVALID_FIELD));
    }
    assert_eq!(host.feature(FeatureId::NUMBER_OF_QUEUES, 0), Err(Status::INVALID_FIELD));
    assert_eq!(host.log(GetLogPage::new(LogPageId::SMART, 0, 512)), Err(Status::INVALID_LOG_PAGE));
    let joined = host.controller.join_queue(host.now, &command(1), &data(5, &Nqn::discovery()));
    assert_eq!(joined, Err(Refusal::parameter_in_command(42)));

    let page = LogPageId::DISCOVERY;
    let head = discovery::Header::parse(&host.log(GetLogPage::new(page, 0, 20)).unwrap()).unwrap();
    assert_eq!((head.generation.get(), head.records.get()), (7, 2));
    let rest = GetLogPage { offset: 1024, ..GetLogPage::new(page, 0, 2048) };
    let entries = host.log(rest).unwrap();
    let names: Vec<_> = discovery::entries(&entries).map(|entry| entry.subnqn()).collect();
    assert_eq!(names, [Nqn::discovery().to_string(), nqn("sub").to_string()]);
    let whole = host.log(GetLogPage::new(page, 0, 4096)).unwrap();
    assert_eq!(whole[1024..3072], entries);
    assert_eq!(whole[3072..], [0; 1024]);
    let beyond = GetLogPage { offset: 3076, ..GetLogPage::new(page, 0, 4) };
    assert_eq!(host.log(beyond), Err(Status::INVALID_FIELD));

    host.feature(FeatureId::ASYNC_EVENT_CONFIGURATION, EventMask::DISCOVERY.0).unwrap();
    assert_eq!(host.leave_event_request(), Outcome::Hold);
    host.controller.catalog_changed(&catalog(&[1, 2]));
    assert_eq!(host.told(), None, "the log is the same");
    host.controller.catalog_changed(&Arc::new(Catalog::new(9, vec![]).unwrap()));
    assert_eq!(host.told(), Some(AsyncEvent::DISCOVERY_CHANGED));
}
