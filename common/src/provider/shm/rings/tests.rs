//! The rings between two ends, and against one that writes whatever it likes.
use proptest::prelude::*;

use super::*;

fn pair() -> (Rings, Rings, Arc<Region>) {
    let shared = Region::new_shared(LENGTH).unwrap();
    let end = |us| Rings::new(Arc::clone(&shared), us);
    (end(End::Target), end(End::Host), shared)
}

#[test]
fn no_number_and_no_ring_lies_upon_another() {
    let mut places: Vec<(usize, usize)> = [End::Target, End::Host]
        .into_iter()
        .flat_map(|end| {
            let numbers = [end.produced(), end.consumed(), end.sleep()].map(|at| (at, at + APART));
            numbers.into_iter().chain([(end.ring(), end.ring() + RING as usize)])
        })
        .collect();
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{places:?}");
    assert_eq!(places.last().unwrap().1, LENGTH);
}

proptest! {
    /// Bytes come as they went, in pieces of whatever lengths, round and round, out of memory and into it.
    #[test]
    fn what_goes_in_comes_out(pieces in prop::collection::vec((1..RING, 1..RING, any::<bool>()), 1..40)) {
        let (mut from, mut to, _) = pair();
        let memory = Memory::new();
        let lkey = memory.register(Region::new(RING as usize).unwrap());
        let (mut next_in, mut next_out) = (0_u64, 0_u64);
        let byte = |index: u64| (index ^ index >> 8 ^ index >> 15) as u8;
        for (put, take, in_place) in pieces {
            let put = put.min(from.room(put).unwrap());
            let bytes: Vec<u8> = (next_in..next_in + put).map(byte).collect();
            let sge = memory.sge(lkey, 0, put as u32);
            if in_place {
                memory.write(sge, &bytes);
                from.put_memory(&memory, sge);
            } else {
                from.put(&bytes);
            }
            prop_assert_eq!(to.there(u64::MAX).unwrap(), next_in - next_out, "published too early");
            from.publish();
            next_in += put;
            let take = take.min(to.there(u64::MAX).unwrap());
            let mut bytes = vec![0; take as usize];
            let sge = memory.sge(lkey, 0, take as u32);
            if in_place {
                to.take_memory(&memory, sge);
                memory.read(sge, &mut bytes);
            } else {
                to.take(&mut bytes);
            }
            prop_assert!((next_out..).zip(&bytes).all(|(index, &is)| is == byte(index)));
            next_out += take;
            to.release();
        }
        prop_assert_eq!(from.room(RING).unwrap(), RING - (next_in - next_out));
    }

    /// Whatever the peer writes into every number, at every step: each is refused, or stays within what is possible.
    #[test]
    fn a_peer_which_writes_anything_gets_nothing(
        steps in prop::collection::vec((0..6_usize, number(), 0..RING), 1..60),
    ) {
        let (mut ours, _, shared) = pair();
        let words = [End::Target, End::Host].map(|end| [end.produced(), end.consumed(), end.sleep()]);
        for (word, value, length) in steps {
            shared.store_u64(words[word / 3][word % 3], value);
            let (taken, there) = (ours.taken, ours.there);
            let Ok(room) = ours.room(RING) else { return Ok(()) };
            prop_assert!(room <= RING && ours.taken >= taken && ours.taken <= ours.published);
            ours.put(&vec![1; room.min(length) as usize]);
            ours.publish();
            prop_assert_eq!(shared.load_u64(End::Target.produced()), ours.produced, "ours is never read back");
            let Ok(bytes) = ours.there(RING) else { return Ok(()) };
            prop_assert!(bytes <= RING && ours.there >= there);
            ours.take(&mut vec![0; bytes.min(length) as usize]);
            ours.release();
            ours.is_to_wake(BYTES);
        }
    }
}

/// Numbers at which something might happen.
fn number() -> impl Strategy<Value = u64> {
    let edges = [0, 1, RING - 1, RING, RING + 1, 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX];
    prop_oneof![any::<u64>(), 0..2 * RING, prop::sample::select(edges.to_vec())]
}

#[test]
fn claims_beyond_what_is_possible_are_refused() {
    let (mut ours, mut theirs, shared) = pair();
    shared.store_u64(End::Host.produced(), RING + 1);
    assert_eq!(ours.there(1), Err(Broken::Produced(RING + 1)));
    shared.store_u64(End::Host.produced(), 100);
    assert_eq!(ours.there(1), Ok(100));
    shared.store_u64(End::Host.produced(), 50);
    assert_eq!(ours.there(200), Err(Broken::Produced(50)), "bytes are not taken back");
    // Room is given for what was published, once.
    assert_eq!(theirs.room(1), Ok(RING));
    theirs.put(&[0; 100]);
    theirs.publish();
    for (consumed, room) in [(101, Err(Broken::Consumed)), (60, Ok(RING - 40)), (59, Err(Broken::Consumed))] {
        shared.store_u64(End::Target.consumed(), consumed);
        assert_eq!(theirs.room(RING), room, "{consumed}");
    }
}

#[test]
fn who_sleeps_is_woken_once_and_for_what_it_wants() {
    let (mut ours, mut theirs, _) = pair();
    assert!(!ours.is_to_wake(BYTES), "it looks by itself");
    theirs.lie_down(BYTES);
    assert!(!ours.is_to_wake(ROOM), "it wants no room");
    assert!(ours.is_to_wake(BYTES));
    assert!(!ours.is_to_wake(BYTES), "twice for one sleep");
    theirs.lie_down(BYTES);
    assert!(!ours.is_to_wake(BYTES), "it has not been up in between");
    theirs.get_up();
    assert!(!ours.is_to_wake(BYTES));
    theirs.lie_down(BYTES | ROOM);
    assert!(ours.is_to_wake(ROOM));
    theirs.get_up();
    theirs.lie_down(BYTES);
    assert!(ours.is_to_wake(BYTES));
}

/// Two threads, each asleep whenever it finds nothing: if one slept upon bytes, this would not end.
#[test]
fn nobody_sleeps_upon_bytes() {
    const ROUNDS: u64 = 20_000;
    let (mut ours, mut theirs, _) = pair();
    let (wake_us, woken) = std::sync::mpsc::channel::<()>();
    let (wake_them, they_are_woken) = std::sync::mpsc::channel::<()>();
    let play = |rings: &mut Rings,
                wake: &std::sync::mpsc::Sender<()>,
                woken: &std::sync::mpsc::Receiver<()>,
                serves: bool| {
        let mut turn = serves;
        for _ in 0..ROUNDS {
            if turn {
                rings.put(&[1; 7]);
                rings.publish();
                if rings.is_to_wake(BYTES) {
                    wake.send(()).unwrap();
                }
            }
            turn = true;
            while rings.there(7).unwrap() < 7 {
                rings.lie_down(BYTES);
                if rings.there(7).unwrap() < 7 {
                    woken.recv().unwrap();
                }
                rings.get_up();
            }
            rings.take(&mut [0; 7]);
            rings.release();
            assert!(rings.room(7).unwrap() >= 7);
        }
        rings.put(&[1; 7]);
        rings.publish();
        if rings.is_to_wake(BYTES) {
            // The last word may find nobody.
            let _ = wake.send(());
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || play(&mut ours, &wake_them, &woken, true));
        scope.spawn(move || play(&mut theirs, &wake_us, &they_are_woken, false));
    });
}
