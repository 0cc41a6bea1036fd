//! One captured queue: its commands, their responses, and the data between them.
use std::collections::{BTreeMap, VecDeque};

use ironside_common::nvme::admin::{self, Cns, GetFeatures, GetLogPage, Identify, SetFeatures};
use ironside_common::nvme::discovery;
use ironside_common::nvme::fabrics::{Connect, ConnectData, ConnectResponse, PropertyGet, PropertySet};
use ironside_common::nvme::identify::{self, DescriptorWriter};
use ironside_common::nvme::io::{Geometry, Ranges, Request};
use ironside_common::nvme::log_page::LogPageId;
use ironside_common::nvme::property::{Capabilities, PropertyId};
use ironside_common::nvme::{
    AdminOpcode, Command, Completion, DataPointer, FabricsType, IoOpcode, Nqn, QueueKind, Transfer,
    private_data,
};
use ironside_tests::support::rdma::{Did, QueuePair};
use zerocopy::{FromBytes, IntoBytes};

/// The namespaces in the captures have blocks of 512 bytes, and nothing is asked beyond their ends.
const GEOMETRY: Geometry = Geometry { block_shift: 9, blocks: 1 << 40, transfer_max: 1 << 20 };

/// How often each command was seen and checked.
pub(crate) type Seen = BTreeMap<String, usize>;

/// The captures also hold connections of other programs, with other private data or none.
pub(crate) fn is_nvme(pair: &QueuePair) -> bool {
    private_data::Request::parse(&pair.request).is_ok_and(|request| request.hrqsize.get() != 0)
}

/// One captured queue, its host's commands waiting for their responses.
pub(crate) struct Queue {
    kind: QueueKind,
    /// By identifier: it is used again only after the response.
    commands: BTreeMap<u16, VecDeque<(Command, Vec<u8>)>>,
    /// Pieces of host memory which the controller wrote or fetched, by key and address.
    moved: BTreeMap<(u32, u64), Vec<u8>>,
    cntlid: Option<u16>,
}

impl Queue {
    pub(crate) fn new(pair: &QueuePair) -> Self {
        let request = private_data::Request::parse(&pair.request).unwrap();
        let entries = u16::try_from(request.commands()).unwrap();
        let again = private_data::Request::new(request.qid.get(), entries, request.cntlid.get());
        assert_padded(again.as_bytes(), &pair.request);
        let reply = private_data::Reply::parse(&pair.reply).unwrap();
        assert_padded(private_data::Reply::new(reply.crqsize.get()).as_bytes(), &pair.reply);
        let kind = if request.qid.get() == 0 { QueueKind::Admin } else { QueueKind::Io };
        Self { kind, commands: BTreeMap::new(), moved: BTreeMap::new(), cntlid: None }
    }

    pub(crate) fn check(mut self, pair: QueuePair, seen: &mut Seen) {
        let mut fetched = VecDeque::new();
        for did in pair.host {
            match did {
                Did::Send { message, .. } => {
                    let command = self.check_command(&message);
                    *seen.entry(self.name(&command)).or_default() += 1;
                    let data = message[Command::SIZE..].to_vec();
                    self.commands.entry(command.cid.get()).or_default().push_back((command, data));
                }
                Did::ReadResponse(bytes) => fetched.push_back(bytes),
                other => assert_eq!(other, Did::Terminate, "a host neither reads nor writes"),
            }
        }
        for did in pair.controller {
            match did {
                Did::Write { key, address, bytes } => {
                    self.moved.insert((key, address), bytes);
                }
                Did::ReadRequest { key, address, length } => {
                    let bytes = fetched.pop_front().unwrap();
                    assert_eq!(bytes.len(), usize::try_from(length).unwrap());
                    self.moved.insert((key, address), bytes);
                }
                Did::Send { message, invalidate } => self.check_response(&message, invalidate),
                other => assert_eq!(other, Did::Terminate, "a controller answers no reads"),
            }
        }
        // Nothing happened to a host's event request, and one program was ended by its first Connect.
        let unanswered = ["Asynchronous Event Request", "Connect"];
        for (command, _) in self.commands.values().flatten() {
            assert!(unanswered.contains(&self.name(command).as_str()), "{}", command.on(self.kind));
        }
    }

    fn name(&self, command: &Command) -> String {
        match (command.fabrics_type(), self.kind) {
            (Some(fabrics_type), _) => fabrics_type.to_string(),
            (None, QueueKind::Admin) => AdminOpcode(command.opcode).to_string(),
            (None, QueueKind::Io) => IoOpcode(command.opcode).to_string(),
        }
    }

    /// A command is what its meaning says, to the bit.
    fn check_command(&self, capsule: &[u8]) -> Command {
        let command = Command::from_capsule(capsule).unwrap();
        assert_eq!(command.to_bytes(), capsule[..Command::SIZE]);
        let in_capsule = u32::try_from(capsule.len() - Command::SIZE).unwrap();
        let pointer = DataPointer::parse(&command, in_capsule).unwrap();
        let words = command.on(self.kind).to_string();
        assert!(!words.contains("opcode") && !words.contains("type 0x"), "{words}");
        let (again, transfer) = self.again(&command);
        assert_eq!(again.with_data(pointer), command, "{words}");
        transfer.check(pointer).unwrap_or_else(|status| panic!("{status}: {words}"));
        command
    }

    /// The command made anew from its meaning, without its data pointer, and what it moves.
    fn again(&self, command: &Command) -> (Command, Transfer) {
        let cid = command.cid.get();
        if self.kind == QueueKind::Io && !command.is_fabrics() {
            let request = Request::parse(command, &GEOMETRY).unwrap();
            return (request.to_command(cid, command.nsid.get()), request.transfer(&GEOMETRY));
        }
        let again = match (command.fabrics_type(), AdminOpcode(command.opcode)) {
            (Some(FabricsType::CONNECT), _) => Connect::parse(command).to_command(cid),
            (Some(FabricsType::PROPERTY_GET), _) => PropertyGet::parse(command).to_command(cid),
            (Some(FabricsType::PROPERTY_SET), _) => PropertySet::parse(command).to_command(cid),
            (None, AdminOpcode::IDENTIFY) => Identify::parse(command).to_command(cid),
            (None, AdminOpcode::GET_LOG_PAGE) => GetLogPage::parse(command).to_command(cid),
            (None, AdminOpcode::SET_FEATURES) => SetFeatures::parse(command).to_command(cid),
            (None, AdminOpcode::GET_FEATURES) => GetFeatures::parse(command).to_command(cid),
            (None, opcode @ (AdminOpcode::KEEP_ALIVE | AdminOpcode::ASYNC_EVENT_REQUEST)) => {
                Command::new(opcode.0, cid, 0)
            }
            _ => panic!("{command}"),
        };
        (again, admin::transfer(command).unwrap())
    }

    fn check_response(&mut self, capsule: &[u8], invalidate: Option<u32>) {
        let response = Completion::from_capsule(capsule).unwrap();
        let (result, sqid) = (response.result.get(), response.sqid.get());
        let (sqhd, cid) = (response.sqhd.get(), response.cid.get());
        let again = Completion::new(result, sqhd, sqid, cid, response.status());
        assert_eq!(again.to_bytes(), capsule);
        assert!(!response.to_string().contains("status type"), "{response}");
        let (command, in_capsule) = self.commands.get_mut(&cid).unwrap().pop_front().unwrap();
        let pointer = DataPointer::parse(&command, u32::MAX).unwrap();
        assert_eq!(invalidate, pointer.key_to_invalidate());
        let data = match pointer {
            DataPointer::Keyed { remote, length, .. } => self.take(remote.rkey, remote.address, length),
            _ => in_capsule,
        };
        if response.status().is_success() {
            assert_eq!(data.len(), usize::try_from(pointer.length()).unwrap());
            self.check_data(&command, &response, &data);
        }
    }

    /// What was moved of a piece of host memory.
    fn take(&mut self, key: u32, address: u64, length: u32) -> Vec<u8> {
        let range = (key, address)..(key, address + u64::from(length));
        let pieces: Vec<_> = self.moved.range(range).map(|(&at, _)| at).collect();
        pieces.iter().flat_map(|at| self.moved.remove(at).unwrap()).collect()
    }

    fn check_data(&mut self, command: &Command, response: &Completion, data: &[u8]) {
        match (command.fabrics_type(), self.kind) {
            (Some(FabricsType::CONNECT), _) => {
                check_connect_data(data);
                let result = response.result.get();
                let answer = ConnectResponse::from_result(result);
                assert_eq!(answer.to_result(), result);
                self.cntlid = Some(answer.cntlid);
            }
            (Some(FabricsType::PROPERTY_GET), _)
                if PropertyGet::parse(command).property == PropertyId::CAP =>
            {
                assert!(Capabilities(response.result.get()).nvm_command_set());
            }
            (None, QueueKind::Admin) => match AdminOpcode(command.opcode) {
                AdminOpcode::IDENTIFY => self.check_identify(&Identify::parse(command), data),
                AdminOpcode::GET_LOG_PAGE => check_log_page(&GetLogPage::parse(command), data),
                _ => {}
            },
            (None, QueueKind::Io) => {
                if let Request::DatasetManagement { ranges, .. } = Request::parse(command, &GEOMETRY).unwrap()
                {
                    Ranges::parse(data, ranges, &GEOMETRY).unwrap();
                }
            }
            _ => {}
        }
    }

    fn check_identify(&self, identify: &Identify, data: &[u8]) {
        let mut again = [0xFF; 4096];
        match identify.cns {
            Cns::CONTROLLER => {
                let controller = identify::Controller::read_from_bytes(data).unwrap();
                assert_eq!(Some(controller.cntlid.get()), self.cntlid);
                assert!(Nqn::from_field(&controller.subnqn).is_ok());
                assert!(controller.transfer_max(12).is_some_and(|longest| longest <= 1 << 20));
                assert_eq!((controller.iorcsz_16b.get(), controller.icdoff_16b.get()), (1, 0));
                again = zerocopy::transmute!(controller);
            }
            Cns::NAMESPACE => {
                let namespace = identify::Namespace::read_from_bytes(data).unwrap();
                assert!(namespace.is_active());
                assert_eq!(namespace.format().map(|format| format.block_shift), Some(9));
                again = zerocopy::transmute!(namespace);
            }
            Cns::ACTIVE_NAMESPACES | Cns::COMMAND_SET_ACTIVE_NAMESPACES => {
                let list = identify::active_namespaces(data);
                identify::write_active_namespaces(&mut again, identify.nsid, list.iter());
            }
            Cns::NAMESPACE_DESCRIPTORS => {
                let mut writer = DescriptorWriter::new(&mut again);
                for descriptor in identify::descriptors(data) {
                    assert!(!matches!(descriptor, identify::Descriptor::Unknown { .. }), "{descriptor}");
                    writer.push(&descriptor);
                }
            }
            Cns::INDEPENDENT_NAMESPACE => {
                let independent = identify::IndependentNamespace::read_from_bytes(data).unwrap();
                assert_eq!(independent.nstat & 1, identify::IndependentNamespace::READY);
                again = zerocopy::transmute!(independent);
            }
            Cns::COMMAND_SET_CONTROLLER => {
                let limits = identify::CommandSetController::read_from_bytes(data).unwrap();
                again = zerocopy::transmute!(limits);
            }
            other => panic!("{other}"),
        }
        assert_eq!(again, data, "{}", identify.cns);
    }
}

fn check_connect_data(data: &[u8]) {
    let connect = ConnectData::read_from_bytes(data).unwrap();
    let subnqn = Nqn::from_field(&connect.subnqn).unwrap();
    let hostnqn = Nqn::from_field(&connect.hostnqn).unwrap();
    let again = ConnectData::new(connect.host_id(), connect.cntlid.get(), &subnqn, &hostnqn);
    assert_eq!(again.as_bytes(), data);
}

fn check_log_page(get: &GetLogPage, data: &[u8]) {
    assert!(!get.page.to_string().starts_with("log page"), "{}", get.page);
    if get.page == LogPageId::DISCOVERY {
        let header = discovery::Header::parse(data).unwrap();
        let again = discovery::Header::new(header.generation.get(), header.records.get());
        assert_eq!(again.as_bytes()[..20], data[..20]);
        for entry in discovery::entries(data.get(1024..).unwrap_or_default()) {
            check_discovery_entry(&entry);
        }
    }
}

fn check_discovery_entry(entry: &discovery::Entry) {
    let (subtype, nqn) = (entry.subsystem_type(), entry.subnqn().parse().unwrap());
    let at = entry.socket_address().unwrap();
    let port_id = entry.port_id.get();
    let made = discovery::Entry::rdma(subtype, &nqn, at.into(), port_id, entry.tsas.provider);
    let again = discovery::Entry { transport_requirements: entry.transport_requirements, ..made };
    assert_eq!(&again, entry);
}

/// The same bytes, and zeros behind them.
fn assert_padded(bytes: &[u8], longer: &[u8]) {
    let (same, padding) = longer.split_at(bytes.len());
    assert_eq!(bytes, same);
    assert!(padding.iter().all(|&byte| byte == 0), "{padding:x?}");
}
