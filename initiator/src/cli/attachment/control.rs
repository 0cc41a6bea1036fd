//! How other commands talk to the process behind an attachment: one line of JSON each way, over a Unix
//! socket only this user may open.
use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use ironside_common::verbs::Address;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Attachment, Process};

const SOCKET: &str = "control.sock";
/// How long the other side may take for its line.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a line.
const LINE: u64 = 64 << 10;

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Question {
    Status,
    /// `force`: even while it is in use.
    Detach {
        force: bool,
    },
    /// What its controllers have told of reservations.
    Notifications,
    /// Secrets are others now.
    Rekey,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    Status(Box<Status>),
    /// It ends now; its process ends when it has.
    Detaching,
    /// Who uses it.
    InUse(Vec<crate::export::usage::Use>),
    /// Oldest first.
    Notifications(Vec<crate::host::ReservationNotice>),
    /// So many queues have authenticated again; others still do if it `goes_on`.
    Rekeyed {
        queues: u16,
        goes_on: bool,
    },
    NotRekeyed {
        why: String,
    },
}

/// How an attachment is.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Status {
    /// As it is now.
    pub(crate) attachment: Attachment,
    pub(crate) condition: Condition,
}

/// How its volume is, and since when.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Condition {
    /// `live`, `connecting` and `dead` in the words of the kernel's controllers; `gone` if the controller is
    /// there, but not the namespace.
    pub(crate) state: String,
    /// How long it has been so.
    pub(crate) seconds: u64,
    /// Why it is not live.
    pub(crate) reason: Option<String>,
    /// Attempts to reconnect that have failed.
    pub(crate) failed_attempts: usize,
    /// How long reconnecting still goes on; nothing for ever.
    pub(crate) gives_up_in_seconds: Option<u64>,
    #[serde(default)]
    pub(crate) paths: Vec<PathCondition>,
}

/// How one path to it is.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct PathCondition {
    pub(crate) address: Address,
    /// As of an attachment.
    pub(crate) state: String,
    /// What the target says of the namespace by this path; nothing if it does not lead there.
    pub(crate) access: Option<String>,
    pub(crate) cntlid: Option<u16>,
    pub(crate) requests: usize,
    /// Why it is not used.
    pub(crate) reason: Option<String>,
}

/// The control socket of the attachment in this directory.
pub(crate) fn listen(directory: &Path) -> io::Result<UnixListener> {
    let path = directory.join(SOCKET);
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Reads a question and answers it by `reply`. Whoever asks nonsense is not answered.
pub(crate) fn answer(mut socket: &UnixStream, reply: impl FnOnce(Question) -> Answer) -> io::Result<()> {
    socket.set_nonblocking(false)?;
    set_patience(socket)?;
    let answer = reply(read_line(socket)?);
    write_line(&mut socket, &answer)
}

/// Asks the process of the attachment in this directory. Also gives that process.
pub(crate) fn ask(directory: &Path, question: Question) -> io::Result<(Answer, Process)> {
    let mut socket = UnixStream::connect(directory.join(SOCKET))?;
    set_patience(&socket)?;
    let pid = getsockopt(&socket, PeerCredentials)?.pid();
    let process = Process::open(u32::try_from(pid).map_err(io::Error::other)?)?;
    write_line(&mut socket, &question)?;
    // That it answers after it was opened shows that it is the one that was opened.
    Ok((read_line(&socket)?, process))
}

fn set_patience(socket: &UnixStream) -> io::Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))
}

fn read_line<T: DeserializeOwned>(socket: &UnixStream) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(socket.take(LINE)).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&line)?)
}

fn write_line<T: Serialize>(mut to: impl Write, value: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_answered_and_nonsense_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let listener = listen(directory.path()).unwrap();
        listener.set_nonblocking(false).unwrap();
        let server = std::thread::spawn(move || {
            let nonsense = answer(&listener.accept().unwrap().0, |_| Answer::Detaching);
            assert!(nonsense.is_err());
            answer(&listener.accept().unwrap().0, |question| match question {
                Question::Detach { force: true } => Answer::Detaching,
                _ => Answer::InUse(Vec::new()),
            })
            .unwrap();
        });
        let mut hostile = UnixStream::connect(directory.path().join(SOCKET)).unwrap();
        hostile.write_all(b"{\"shout\":1}\n").unwrap();
        assert_eq!(hostile.read(&mut [0; 10]).unwrap(), 0);
        let (answer, process) = ask(directory.path(), Question::Detach { force: true }).unwrap();
        assert!(matches!(answer, Answer::Detaching));
        assert!(!process.wait(Duration::ZERO).unwrap());
        server.join().unwrap();
    }
}
