//! The control device of ublk: each command waits until the driver has carried it out.
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use std::{io, mem};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use zerocopy::{FromBytes, IntoBytes};

use super::wire::{Command, ControlCommand, DeviceInfo, Parameters};

pub const CONTROL: &str = "/dev/ublk-control";
/// Which device is to be made: any that is free.
const ANY: u32 = u32::MAX;
/// The queue of a command which is about none.
const NO_QUEUE: u16 = u16::MAX;
/// How long a command may take. To start a device includes reading its partition table.
const PATIENCE: Duration = Duration::from_secs(60);

/// The largest of what is passed beside a command.
const PASSED_MAX: usize = 64;

type Uring = IoUring<squeue::Entry128, cqueue::Entry>;
type Passed = Box<[u8; PASSED_MAX]>;

/// The open control device, and a ring for its commands, which are longer than those of others.
pub(super) struct Control {
    uring: Uring,
    device: OwnedFd,
    /// What a command passes: at an address which outlives it.
    passed: Passed,
}

impl Control {
    /// # Errors
    /// When there is no driver, no right to use it, or no io_uring.
    pub(super) fn open() -> io::Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open(Path::new(CONTROL))?.into();
        Ok(Self { uring: uring()?, device, passed: Box::new([0; PASSED_MAX]) })
    }

    /// What this driver can do.
    pub(super) fn features(&mut self) -> io::Result<u64> {
        self.pass(Command::GetFeatures, ANY, &[0; 8])?;
        Ok(u64::read_from_prefix(&self.passed[..]).map_or(0, |(features, _)| features))
    }

    /// Makes a device; says what became of the wishes, and its number.
    pub(super) fn add(&mut self, wanted: DeviceInfo) -> io::Result<DeviceInfo> {
        let wanted = DeviceInfo { number: ANY, ..wanted };
        self.pass(Command::AddDevice, ANY, wanted.as_bytes())?;
        Ok(zerocopy::transmute!(*self.passed))
    }

    pub(super) fn info(&mut self, number: u32) -> io::Result<DeviceInfo> {
        self.pass(Command::GetDeviceInfo, number, &[0; size_of::<DeviceInfo>()])?;
        Ok(zerocopy::transmute!(*self.passed))
    }

    pub(super) fn set_parameters(&mut self, number: u32, parameters: Parameters) -> io::Result<()> {
        self.pass(Command::SetParameters, number, parameters.as_bytes())
    }

    /// A command about a device, with a number for its argument if it takes one.
    pub(super) fn tell(&mut self, command: Command, number: u32, data: u64) -> io::Result<()> {
        self.run(command, ControlCommand { device: number, data, ..ControlCommand::default() })
    }

    /// A command with bytes beside it, in whose place the answer lies afterwards.
    fn pass(&mut self, command: Command, number: u32, bytes: &[u8]) -> io::Result<()> {
        self.passed[..bytes.len()].copy_from_slice(bytes);
        let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        let address = self.passed.as_mut_ptr().expose_provenance() as u64;
        self.run(command, ControlCommand { device: number, length, address, ..ControlCommand::default() })
    }

    fn run(&mut self, command: Command, argument: ControlCommand) -> io::Result<()> {
        let mut bytes = [0; 80];
        let argument = ControlCommand { queue: NO_QUEUE, ..argument };
        bytes[..size_of::<ControlCommand>()].copy_from_slice(argument.as_bytes());
        let entry = opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), command.number()).cmd(bytes).build();
        // SAFETY: the only memory a command names is what is passed with it, which stays until the command has ended: it
        // is leaked if that does not come in time.
        unsafe { self.uring.submission().push(&entry) }.map_err(io::Error::other)?;
        let timeout = Timespec::from(PATIENCE);
        loop {
            match self.uring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timeout)) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) if error.raw_os_error() == Some(libc::ETIME) => break,
                Err(error) => return Err(error),
                Ok(_) => break,
            }
        }
        let Some(completed) = self.uring.completion().next() else {
            mem::forget(mem::replace(&mut self.passed, Box::new([0; PASSED_MAX])));
            self.uring = uring()?;
            return Err(io::ErrorKind::TimedOut.into());
        };
        if completed.result() < 0 { Err(io::Error::from_raw_os_error(-completed.result())) } else { Ok(()) }
    }
}

fn uring() -> io::Result<Uring> {
    IoUring::builder().dontfork().build(4)
}
