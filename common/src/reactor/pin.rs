//! Ties a reactor's thread to its core.
use std::io;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Keeps the calling thread on this core from now on.
///
/// # Errors
/// When there is no such core, or this process may not use it.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core)?;
    let this_thread = Pid::from_raw(0);
    Ok(sched_setaffinity(this_thread, &cores)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CpuSet, sched_getaffinity};

    #[test]
    fn a_thread_stays_where_it_was_put() {
        std::thread::spawn(|| {
            let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
            let core = (0..CpuSet::count()).find(|&core| allowed.is_set(core).unwrap()).unwrap();
            pin_to_core(core).unwrap();
            let now = sched_getaffinity(Pid::from_raw(0)).unwrap();
            assert_eq!(
                (0..CpuSet::count()).filter(|&other| now.is_set(other).unwrap()).collect::<Vec<_>>(),
                [core]
            );
            assert!(pin_to_core(CpuSet::count()).is_err());
        })
        .join()
        .unwrap();
    }
}
