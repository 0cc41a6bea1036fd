//! A target for the fake provider: one subsystem, one controller, a few namespaces in memory. It follows the
//! rules unless a [`Lie`] says otherwise.
use std::collections::BTreeMap;

use ironside_common::nvme::admin::{Cns, Identify};
use ironside_common::nvme::discovery::{self, Entry, Header, SubsystemType};
use ironside_common::nvme::fabrics::{
    Connect, ConnectData, ConnectResponse, InvalidParameter, PropertyGet, PropertySet,
};
use ironside_common::nvme::feature::{FeatureId, QueueCounts};
use ironside_common::nvme::io::{Geometry, Request};
use ironside_common::nvme::property::{Capabilities, Configuration, ControllerStatus, PropertyId};
use ironside_common::nvme::reservation::NotificationLog;
use ironside_common::nvme::{
    AdminOpcode, Command, DISCOVERY_NQN, FabricsType, Nqn, Status, admin, identify, log_page, text,
};
use ironside_common::verbs::QpHandle;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::fake::{Fake, Posted, response};

pub(super) const BLOCK: u32 = 512;
pub(super) const BLOCKS: u64 = 4096;
pub(super) const CNTLID: u16 = 7;

/// What a target may get wrong.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lie {
    /// Answers identify with something made worse.
    Controller(fn(&mut identify::Controller)),
    Namespace(fn(&mut identify::Namespace)),
    /// Lists these namespaces.
    List(&'static [u32]),
    /// Never becomes ready, or fails.
    ControllerStatus(u32),
    Capabilities(u64),
    /// Grants this as number of queues.
    QueueCounts(u32),
    ConnectStatus(Status, InvalidParameter),
    ConnectResult(u64),
}

#[derive(Debug)]
pub(super) struct Target {
    pub lie: Option<Lie>,
    pub blocks: BTreeMap<u32, Vec<u8>>,
    pub uuid_of: fn(u32) -> u128,
    /// Answer with Send with Invalidate where asked.
    pub invalidates: bool,
    /// Answer I/O with this instead.
    pub io_status: Option<Status>,
    /// Commands of I/O queues are left unanswered.
    pub holds_io: bool,
    pub silent: bool,
    pub generation: u64,
    /// Asynchronous Event Request and its queue pair.
    pub event_request: Option<(QpHandle, u16)>,
    pub keep_alives: usize,
    pub connects: Vec<(u16, u32, u16)>,
    pub shutdowns: usize,
    /// Namespaces are shared, and each association has a controller of its own.
    pub several: bool,
    /// Types of notifications in its log of reservations, oldest first.
    pub notices: Vec<u8>,
    queues: BTreeMap<u16, Queue>,
    configuration: u32,
    is_discovery: bool,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    id: u16,
    size: u16,
    head: u16,
    no_flow_control: bool,
    cntlid: u16,
}

impl Target {
    pub(super) fn new() -> Self {
        let bytes = (BLOCKS * u64::from(BLOCK)) as usize;
        Self {
            lie: None,
            blocks: [(1, vec![0; bytes]), (5, vec![0; bytes])].into(),
            uuid_of: |nsid| 0xABCD_0000 + u128::from(nsid),
            invalidates: true,
            io_status: None,
            holds_io: false,
            silent: false,
            generation: 1,
            event_request: None,
            keep_alives: 0,
            connects: Vec::new(),
            shutdowns: 0,
            several: false,
            notices: Vec::new(),
            queues: BTreeMap::new(),
            configuration: 0,
            is_discovery: false,
        }
    }

    /// Accepts connects and answers commands until there is nothing left to do.
    pub(super) fn run(&mut self, fake: &mut Fake) -> bool {
        let mut any = false;
        while let Some((qp, private_data)) = fake.dialled.pop_front() {
            if self.silent {
                continue;
            }
            let id = u16::from_le_bytes([private_data[2], private_data[3]]);
            let size = u16::from_le_bytes([private_data[6], private_data[7]]) + 1;
            self.queues.insert(qp.0, Queue { id, size, head: 0, no_flow_control: false, cntlid: CNTLID });
            fake.establish(qp);
            any = true;
        }
        let count = fake.posted.len();
        for _ in 0..count {
            let Some(posted) = fake.posted.pop_front() else { break };
            if self.silent
                || self.holds_io && self.queues[&posted.qp.0].id != 0 && !posted.command.is_fabrics()
            {
                fake.posted.push_back(posted);
                continue;
            }
            self.answer(fake, &posted);
            any = true;
        }
        any
    }

    pub(super) fn tell_of_change(&mut self, fake: &mut Fake) {
        let (qp, cid) = self.event_request.take().expect("the host asks for events");
        self.complete(fake, qp, cid, Ok(0x0004_0002), None);
    }

    pub(super) fn tell_of_reservations(&mut self, fake: &mut Fake) {
        let (qp, cid) = self.event_request.take().expect("the host asks for events");
        self.complete(fake, qp, cid, Ok(0x0080_0006), None);
    }

    fn answer(&mut self, fake: &mut Fake, posted: &Posted) {
        let (qp, cid) = (posted.qp, posted.command.cid.get());
        assert_eq!(posted.command.psdt(), 0b01);
        let mut result = self.execute(fake, posted);
        let io = self.queues[&qp.0].id != 0 && !posted.command.is_fabrics();
        if let (Some(status), true) = (self.io_status, io) {
            result = Some(Err((status, 0)));
        }
        let key = posted.exposure.map(|exposure| exposure.remote.rkey).filter(|_| self.invalidates);
        if let Some(result) = result {
            self.complete(fake, qp, cid, result, key);
        }
    }

    fn complete(
        &mut self,
        fake: &mut Fake,
        qp: QpHandle,
        cid: u16,
        result: Result<u64, (Status, u64)>,
        key: Option<u32>,
    ) {
        let queue = self.queues.get_mut(&qp.0).unwrap();
        queue.head = (queue.head + 1) % queue.size;
        let head = if queue.no_flow_control { 0xFFFF } else { queue.head };
        let (value, status) = match result {
            Ok(value) => (value, Status::SUCCESS),
            Err((status, value)) => (value, status),
        };
        fake.respond(qp, &response(cid, queue.id, head, value, status), key);
    }

    /// The result, or nothing if the answer comes later.
    fn execute(&mut self, fake: &mut Fake, posted: &Posted) -> Option<Result<u64, (Status, u64)>> {
        let command = &posted.command;
        if let Some(fabrics) = command.fabrics_type() {
            return Some(self.fabrics(fake, posted, fabrics));
        }
        if self.queues[&posted.qp.0].id != 0 {
            return Some(self.io(fake, posted).map_err(|status| (status, 0)));
        }
        match AdminOpcode(command.opcode) {
            AdminOpcode::IDENTIFY => {
                let identify = Identify::parse(command);
                let mut page = [0; 4096];
                let result = self.identify(&identify, self.queues[&posted.qp.0].cntlid, &mut page);
                if result.is_ok() {
                    fake.data_to_host(posted, &page);
                }
                Some(result.map(|()| 0).map_err(|status| (status, 0)))
            }
            AdminOpcode::SET_FEATURES => Some(Ok(self.set_features(command))),
            AdminOpcode::GET_LOG_PAGE => {
                let log = self.log(&admin::GetLogPage::parse(command));
                fake.data_to_host(posted, &log);
                Some(Ok(0))
            }
            AdminOpcode::KEEP_ALIVE => {
                self.keep_alives += 1;
                Some(Ok(0))
            }
            AdminOpcode::ASYNC_EVENT_REQUEST => {
                self.event_request = Some((posted.qp, command.cid.get()));
                None
            }
            _ => Some(Err((Status::INVALID_OPCODE, 0))),
        }
    }

    fn fabrics(
        &mut self,
        fake: &mut Fake,
        posted: &Posted,
        fabrics: FabricsType,
    ) -> Result<u64, (Status, u64)> {
        match fabrics {
            FabricsType::CONNECT => self.connect(fake, posted),
            FabricsType::PROPERTY_GET => Ok(self.property(PropertyGet::parse(&posted.command).property)),
            FabricsType::PROPERTY_SET => {
                let set = PropertySet::parse(&posted.command);
                assert_eq!(set.property, PropertyId::CC);
                self.configuration = set.value as u32;
                let shutdown = Configuration(self.configuration).shutdown();
                self.shutdowns += usize::from(shutdown != ironside_common::nvme::property::Shutdown::None);
                Ok(0)
            }
            _ => Err((Status::INVALID_OPCODE, 0)),
        }
    }

    fn connect(&mut self, fake: &mut Fake, posted: &Posted) -> Result<u64, (Status, u64)> {
        let connect = Connect::parse(&posted.command);
        let bytes = fake.data_from_host(posted);
        let data = ConnectData::read_from_bytes(&bytes).unwrap();
        let queue = self.queues.get_mut(&posted.qp.0).unwrap();
        assert_eq!((connect.qid, connect.sqsize + 1), (queue.id, queue.size));
        queue.no_flow_control = connect.disable_sq_flow_control;
        self.is_discovery = text::read(&data.subnqn) == DISCOVERY_NQN;
        queue.cntlid = match (connect.qid, self.several) {
            (0, true) => CNTLID + self.connects.len() as u16,
            (0, false) => CNTLID,
            _ => data.cntlid.get(),
        };
        let cntlid = queue.cntlid;
        self.connects.push((connect.qid, connect.kato_ms, data.cntlid.get()));
        match self.lie {
            Some(Lie::ConnectStatus(status, parameter)) => Err((status, parameter.to_result())),
            Some(Lie::ConnectResult(value)) => Ok(value),
            _ => Ok(ConnectResponse { cntlid, authentication_required: false }.to_result()),
        }
    }

    fn property(&self, property: PropertyId) -> u64 {
        match (property, self.lie) {
            (PropertyId::CAP, Some(Lie::Capabilities(value))) => value,
            (PropertyId::CAP, _) => Capabilities::new(64, 2).0,
            (PropertyId::CSTS, Some(Lie::ControllerStatus(value))) => value.into(),
            (PropertyId::CSTS, _) => {
                let configuration = Configuration(self.configuration);
                let shut_down = configuration.shutdown() != ironside_common::nvme::property::Shutdown::None;
                ControllerStatus::new(configuration.enabled() && !shut_down, false, shut_down).0.into()
            }
            (PropertyId::VS, _) => 0x0001_0400,
            _ => 0,
        }
    }

    fn identify(&self, identify: &Identify, cntlid: u16, page: &mut [u8; 4096]) -> Result<(), Status> {
        let namespace = self.blocks.get(&identify.nsid);
        match identify.cns {
            Cns::CONTROLLER => *page = zerocopy::transmute!(self.controller(cntlid)),
            Cns::ACTIVE_NAMESPACES => {
                let all: Vec<u32> = self.blocks.keys().copied().collect();
                let list = if let Some(Lie::List(list)) = self.lie { list } else { &all };
                for (slot, nsid) in page.chunks_exact_mut(4).zip(list) {
                    slot.copy_from_slice(&nsid.to_le_bytes());
                }
            }
            Cns::NAMESPACE => {
                let Some(bytes) = namespace else { return Ok(()) };
                let mut wire = identify::Namespace::new_zeroed();
                let blocks = bytes.len() as u64 / u64::from(BLOCK);
                (wire.nsze, wire.ncap, wire.nuse) = (blocks.into(), blocks.into(), blocks.into());
                wire.dlfeat = identify::Namespace::DEALLOCATED_READS_ZERO;
                wire.formats[0].block_shift = 9;
                wire.nmic = u8::from(self.several);
                if let Some(Lie::Namespace(change)) = self.lie {
                    change(&mut wire);
                }
                *page = zerocopy::transmute!(wire);
            }
            Cns::NAMESPACE_DESCRIPTORS if namespace.is_some() => {
                let uuid = uuid::Uuid::from_u128((self.uuid_of)(identify.nsid));
                identify::DescriptorWriter::new(page).push(&identify::Descriptor::Uuid(uuid));
            }
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(())
    }

    fn controller(&self, cntlid: u16) -> identify::Controller {
        let mut wire = identify::Controller::new_zeroed();
        wire.cntlid = cntlid.into();
        wire.model = text::padded("Ironside");
        wire.controller_type = if self.is_discovery { 2 } else { 1 };
        wire.mdts = 1;
        wire.oaes = 0x100.into();
        wire.kas_100ms = 10.into();
        wire.maxcmd = 64.into();
        wire.oncs = 0b1100.into();
        wire.vwc = 1;
        wire.sgls = 0x0010_0005.into();
        wire.ioccsz_16b = 260.into();
        wire.iorcsz_16b = 1.into();
        if let Some(Lie::Controller(change)) = self.lie {
            change(&mut wire);
        }
        wire
    }

    fn set_features(&self, command: &Command) -> u64 {
        let set = admin::SetFeatures::parse(command);
        match (set.feature, self.lie) {
            (FeatureId::NUMBER_OF_QUEUES, Some(Lie::QueueCounts(value))) => value.into(),
            (FeatureId::NUMBER_OF_QUEUES, _) => {
                QueueCounts { submission: 2, completion: 3 }.to_dword().into()
            }
            _ => 0,
        }
    }

    fn log(&mut self, get: &admin::GetLogPage) -> Vec<u8> {
        let mut log = vec![0; get.length as usize];
        if get.page == log_page::LogPageId::RESERVATION_NOTIFICATION && !self.notices.is_empty() {
            let kind = self.notices.remove(0);
            let available = u8::try_from(self.notices.len()).unwrap();
            let page = NotificationLog { kind, available, nsid: 5.into(), ..NotificationLog::new_zeroed() };
            log.copy_from_slice(page.as_bytes());
        }
        if get.page == log_page::LogPageId::DISCOVERY {
            let mut whole = Header::new(self.generation, 6).as_bytes().to_vec();
            for number in 0..6 {
                let nqn: Nqn =
                    format!("nqn.2026-11.org.example:{}-{number}", self.generation).parse().unwrap();
                let at = "192.0.2.1:4420".parse().unwrap();
                let provider = discovery::RdmaAttributes::PROVIDER_IWARP;
                whole.extend_from_slice(Entry::rdma(SubsystemType::NVM, &nqn, at, 1, provider).as_bytes());
            }
            log.copy_from_slice(&whole[get.offset as usize..][..get.length as usize]);
            if get.offset != 0 && self.generation == 1 {
                self.generation = 2;
            }
        }
        log
    }

    fn io(&mut self, fake: &mut Fake, posted: &Posted) -> Result<u64, Status> {
        let geometry = Geometry { block_shift: 9, blocks: BLOCKS, transfer_max: 8192 };
        let request = Request::parse(&posted.command, &geometry)?;
        let nsid = posted.command.nsid.get();
        let bytes = self.blocks.get_mut(&nsid).ok_or(Status::INVALID_NAMESPACE)?;
        let range = |lba: u64, blocks: u32| {
            let start = (lba * u64::from(BLOCK)) as usize;
            start..start + (blocks * BLOCK) as usize
        };
        match request {
            Request::Read { lba, blocks, .. } => fake.data_to_host(posted, &bytes[range(lba, blocks)]),
            Request::Write { lba, blocks, .. } => {
                bytes[range(lba, blocks)].copy_from_slice(&fake.data_from_host(posted));
            }
            Request::WriteZeroes { lba, blocks, .. } => bytes[range(lba, blocks)].fill(0),
            Request::DatasetManagement { ranges, deallocate: true } => {
                let data = fake.data_from_host(posted);
                for (lba, blocks) in
                    ironside_common::nvme::io::Ranges::parse(&data, ranges, &geometry)?.iter()
                {
                    bytes[range(lba, blocks)].fill(0);
                }
            }
            Request::Flush => {}
            other => panic!("nobody asked for {other:?}"),
        }
        Ok(0)
    }
}
