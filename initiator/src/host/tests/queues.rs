//! One queue against a peer that answers whatever it likes.
use ironside_common::nvme::{Command, DataPointer, IoOpcode, Status};
use ironside_common::verbs::{ConnectParameters, Connections, Event, Registration};

use super::fake::response;
use super::*;
use crate::host::queue::{Data, Finished, QueueParameters};

struct Bench {
    fake: Fake,
    queue: Queue<u32>,
    buffer: Sge,
}

impl Bench {
    fn new(size: u16) -> Self {
        let memory = Memory::new();
        let lkey = memory.register(Region::new(4096).unwrap());
        let buffer = memory.sge(lkey, 0, 4096);
        let mut fake = Fake::new(memory);
        let parameters = ConnectParameters { receives: size, receive_size: 16, send_queue: 64, reads: 0 };
        let qp = fake.connect("192.0.2.1:4420".parse().unwrap(), parameters, &[]);
        let parameters = QueueParameters { id: 3, size, in_capsule: 512, disable_flow_control: false };
        let queue = Queue::new(&mut fake, qp, parameters);
        Self { fake, queue, buffer }
    }

    /// Sends a read; the CID and key it got.
    fn read(&mut self, owner: u32) -> (u16, u32) {
        let command = Command::new(IoOpcode::READ.0, 0, 1);
        self.queue.submit(&mut self.fake, command, Data::In(self.buffer), owner, Time::ZERO);
        let posted = self.fake.posted.pop_front().unwrap();
        (posted.command.cid.get(), posted.exposure.unwrap().remote.rkey)
    }

    fn answer(&mut self, bytes: &[u8], key: Option<u32>) -> Result<Option<Finished<u32>>, Fault> {
        let qp = self.queue.qp();
        self.fake.respond(qp, bytes, key);
        self.work()
    }

    fn work(&mut self) -> Result<Option<Finished<u32>>, Fault> {
        let mut last = None;
        while let Some(event) = self.fake.poll() {
            let finished = match event {
                Event::Received(received) => self.queue.on_received(&mut self.fake, received)?,
                Event::Completed(wc) => self.queue.on_completed(wc)?,
                Event::Connection(_) => None,
            };
            last = finished.or(last);
        }
        Ok(last)
    }
}

#[test]
fn an_answer_ends_its_command_once() {
    let mut bench = Bench::new(16);
    let (cid, key) = bench.read(77);
    let finished = bench.answer(&response(cid, 3, 1, 5, Status::SUCCESS), Some(key)).unwrap();
    assert_eq!(finished, Some(Finished { owner: 77, result: Ok(5) }));
    let again = bench.answer(&response(cid, 3, 1, 5, Status::SUCCESS), None);
    assert_eq!(again, Err(Fault::UnknownCommand(cid)));
}

#[test]
fn the_queue_identifier_may_be_left_out_but_not_be_wrong() {
    let mut bench = Bench::new(16);
    let (cid, key) = bench.read(1);
    assert!(bench.answer(&response(cid, 0, 1, 0, Status::SUCCESS), Some(key)).unwrap().is_some());
    let (cid, key) = bench.read(2);
    let wrong = bench.answer(&response(cid, 4, 2, 0, Status::SUCCESS), Some(key));
    assert_eq!(wrong, Err(Fault::ResponseQueue(4)));
}

/// Makes a response and the key it names from the identifier and the key of a command.
type MakeAnswer = fn(u16, u32) -> (Vec<u8>, Option<u32>);

#[test]
fn what_is_no_answer_is_a_fault() {
    let cases: [(MakeAnswer, Fault); 5] = [
        (
            |cid, key| (response(cid, 3, 1, 0, Status::SUCCESS)[..15].to_vec(), Some(key)),
            Fault::ResponseLength(15),
        ),
        (|_, _| (Vec::new(), None), Fault::ResponseLength(0)),
        (|_, _| (response(0x0407, 3, 1, 0, Status::SUCCESS).to_vec(), None), Fault::UnknownCommand(0x0407)),
        (|_, _| (response(0xFFFF, 3, 1, 0, Status::SUCCESS).to_vec(), None), Fault::UnknownCommand(0xFFFF)),
        (
            |cid, key| (response(cid, 3, 16, 0, Status::SUCCESS).to_vec(), Some(key)),
            Fault::QueueHead { head: 16, size: 16 },
        ),
    ];
    for (make, fault) in cases {
        let mut bench = Bench::new(16);
        let (cid, key) = bench.read(1);
        let (bytes, invalidate) = make(cid, key);
        assert_eq!(bench.answer(&bytes, invalidate), Err(fault));
    }
}

#[test]
fn only_the_key_of_the_command_may_be_invalidated() {
    let mut bench = Bench::new(16);
    let (first, first_key) = bench.read(1);
    let (_, second_key) = bench.read(2);
    let wrong = bench.answer(&response(first, 3, 1, 0, Status::SUCCESS), Some(second_key));
    assert_eq!(wrong, Err(Fault::WrongKey { named: second_key, exposed: Some(first_key) }));

    let mut bench = Bench::new(16);
    let command = Command::new(IoOpcode::FLUSH.0, 0, 1);
    bench.queue.submit(&mut bench.fake, command, Data::None, 1, Time::ZERO);
    let cid = bench.fake.posted.pop_front().unwrap().command.cid.get();
    let wrong = bench.answer(&response(cid, 3, 1, 0, Status::SUCCESS), Some(5));
    assert_eq!(wrong, Err(Fault::WrongKey { named: 5, exposed: None }));
}

#[test]
fn a_key_which_is_not_for_the_target_to_end_is_not_offered_to_it() {
    for (registration, invalidations) in
        [(Registration::Window, 1), (Registration::Pool, 0), (Registration::Dynamic, 1)]
    {
        let mut bench = Bench::new(16);
        bench.fake.registration = registration;
        let command = Command::new(IoOpcode::READ.0, 0, 1);
        bench.queue.submit(&mut bench.fake, command, Data::In(bench.buffer), 7, Time::ZERO);
        let posted = bench.fake.posted.pop_front().unwrap();
        let Ok(DataPointer::Keyed { invalidate, .. }) = DataPointer::parse(&posted.command, 0) else {
            panic!("a read is keyed")
        };
        assert_eq!(invalidate, registration.peer_invalidates());
        let answer = response(posted.command.cid.get(), 3, 1, 0, Status::SUCCESS);
        assert!(bench.answer(&answer, None).unwrap().is_some());
        assert_eq!(bench.fake.invalidations, invalidations, "{registration:?}");
    }
    let mut bench = Bench::new(16);
    bench.fake.registration = Registration::Pool;
    let (cid, key) = bench.read(1);
    let wrong = bench.answer(&response(cid, 3, 1, 0, Status::SUCCESS), Some(key));
    assert_eq!(wrong, Err(Fault::WrongKey { named: key, exposed: None }));
}

#[test]
fn a_second_answer_before_the_first_is_over_is_a_fault() {
    let mut bench = Bench::new(16);
    bench.fake.sends_complete = false;
    let (cid, key) = bench.read(1);
    let answer = response(cid, 3, 1, 0, Status::SUCCESS);
    assert_eq!(bench.answer(&answer, Some(key)), Ok(None));
    assert_eq!(bench.answer(&answer, Some(key)), Err(Fault::SecondResponse(cid)));
}

#[test]
fn the_head_of_the_queue_bounds_what_is_sent() {
    let mut bench = Bench::new(4);
    let keys: Vec<_> = (0..3).map(|owner| bench.read(owner)).collect();
    assert!(!bench.queue.has_room(), "one entry stays free");
    let (cid, key) = keys[0];
    bench.answer(&response(cid, 3, 0, 0, Status::SUCCESS), Some(key)).unwrap();
    assert!(!bench.queue.has_room(), "the controller has not fetched it, it says");
    let (cid, key) = keys[1];
    bench.answer(&response(cid, 3, 2, 0, Status::SUCCESS), Some(key)).unwrap();
    assert!(bench.queue.has_room());
    let (cid, key) = keys[2];
    // Two responses may carry their heads in either order; and where nothing is left, nothing waits.
    bench.answer(&response(cid, 3, 1, 0, Status::SUCCESS), Some(key)).unwrap();
    for owner in 0..3 {
        assert!(bench.queue.has_room());
        bench.read(owner);
    }
}

#[test]
fn identifiers_do_not_come_back_soon() {
    let mut bench = Bench::new(2);
    let mut seen = std::collections::BTreeSet::new();
    for head in 1..=64_u16 {
        let (cid, key) = bench.read(1);
        assert!(seen.insert(cid), "{cid:#x} again");
        bench.answer(&response(cid, 3, head % 2, 0, Status::SUCCESS), Some(key)).unwrap();
    }
}

#[test]
fn a_broken_queue_waits_for_its_work_and_gives_its_owners_back() {
    let mut bench = Bench::new(16);
    bench.fake.sends_complete = false;
    bench.read(1);
    bench.read(2);
    bench.queue.set_broken();
    assert!(!bench.queue.has_room());
    bench.fake.disconnect(bench.queue.qp());
    let mut drained = Vec::new();
    while let Some(event) = bench.fake.poll() {
        match event {
            Event::Completed(wc) => assert_eq!(bench.queue.on_completed(wc), Ok(None)),
            _ => bench.queue.on_disconnected(),
        }
        drained.push(bench.queue.is_drained());
    }
    assert_eq!(drained, [false, false, true]);
    assert_eq!(bench.queue.into_unfinished().collect::<Vec<_>>(), [1, 2]);
}
