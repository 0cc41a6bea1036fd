//! A target that lies while a connection is made: each lie is a clean error in words, and nothing is left.
use ironside_common::nvme::Status;
use ironside_common::nvme::fabrics::InvalidParameter;

use super::*;

#[test]
fn every_lie_of_a_controller_is_an_error_in_words() {
    let lies: [(Lie, &str); 20] = [
        (Lie::Controller(|c| c.cntlid = 9.into()), "calls itself controller 0x0009"),
        (Lie::Controller(|c| c.sgls = 1.into()), "no keyed SGL"),
        (Lie::Controller(|c| c.ioccsz_16b = 3.into()), "command capsules are 48 bytes"),
        (Lie::Controller(|c| c.iorcsz_16b = 0.into()), "response capsules are 0 bytes"),
        (Lie::Controller(|c| c.icdoff_16b = 1.into()), "offset of 16 bytes"),
        (Lie::Controller(|c| c.kas_100ms = 0.into()), "keep-alive"),
        (Lie::Controller(|c| c.controller_type = 2), "discovery controller"),
        (Lie::Controller(|c| c.maxcmd = 1.into()), "queues have 1 entries"),
        (Lie::List(&[5, 1]), "not in ascending order"),
        (Lie::List(&[1, 1]), "not in ascending order"),
        (Lie::ControllerStatus(0), "did not become ready within 1000 ms"),
        (Lie::ControllerStatus(u32::MAX), "fatal error"),
        (Lie::ControllerStatus(0b10), "fatal error"),
        (Lie::Capabilities(0xFFFF), "no NVM command set"),
        (Lie::ConnectResult(0xFFF0), "0xfff0 is reserved"),
        (Lie::ConnectResult(7 | 1 << 17), "no secret for that"),
        (Lie::QueueCounts(u32::MAX), "no I/O queue"),
        (
            Lie::ConnectStatus(Status::CONNECT_INVALID_HOST, InvalidParameter::HOSTNQN),
            "does not admit this host",
        ),
        (
            Lie::ConnectStatus(Status::CONNECT_INVALID_PARAMETERS, InvalidParameter::KATO),
            "keep alive timeout",
        ),
        (
            Lie::ConnectStatus(Status::INVALID_OPCODE, InvalidParameter::KATO),
            "Fabrics Connect of the admin queue",
        ),
    ];
    for (lie, words) in lies {
        let mut world = World::with_lie(lie);
        world.start();
        world.pass(Duration::from_secs(3));
        let error = world.failure().unwrap_or_else(|| panic!("{words}: {:?}", world.events)).to_string();
        assert!(error.contains(words), "{error:?} does not say {words:?}");
        assert!(world.host.is_over() && world.fake.pairs().is_empty());
        assert_eq!(world.fake.exposed_now(), 0);
    }
}

#[test]
fn a_namespace_that_makes_no_sense_is_passed_over() {
    let lies: [fn(&mut ironside_common::nvme::identify::Namespace); 6] = [
        |n| n.ncap = 0.into(),
        |n| n.formats[0].block_shift = 8,
        |n| n.formats[0].block_shift = 255,
        |n| n.formats[0].metadata_size = 8.into(),
        |n| n.nsze = u64::MAX.into(),
        |n| n.flbas = 0x0F,
    ];
    for lie in lies {
        let mut world = World::with_lie(Lie::Namespace(lie));
        world.start();
        assert_eq!((world.host.state(), world.host.namespaces().len()), (State::Connected, 0));
        assert_eq!(world.host.skipped().len(), 2);
    }
}

#[test]
fn extreme_limits_are_bounded() {
    let lies: [fn(&mut ironside_common::nvme::identify::Controller); 3] =
        [|c| c.mdts = 255, |c| (c.mdts, c.maxcmd) = (0, u16::MAX.into()), |c| c.ioccsz_16b = u32::MAX.into()];
    for lie in lies {
        let mut world = World::with_lie(Lie::Controller(lie));
        world.start();
        assert_eq!(world.host.state(), State::Connected);
        world.submit(1, Operation::Write { fua: false }, 0, 65_536);
        assert!(world.completed().is_some());
        assert!(world.host.namespaces()[0].geometry.max_transfer <= 1 << 20);
    }
}

#[test]
fn a_namespace_list_without_end_is_cut_short() {
    const LIST: [u32; 1024] = {
        let mut list = [0; 1024];
        let mut index = 0;
        while index < 1024 {
            list[index] = index as u32 + 1;
            index += 1;
        }
        list
    };
    let mut world = World::with_lie(Lie::List(&LIST));
    world.start();
    assert_eq!((world.host.state(), world.host.namespaces().len()), (State::Connected, 2));
}
