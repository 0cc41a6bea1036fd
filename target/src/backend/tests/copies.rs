//! Copies which media make by themselves, and those which they leave to whoever reads and writes.
use super::*;

const PART: u32 = 64 << 10;

const fn copy(source: u64, offset: u64, length: u32) -> Operation {
    Operation::Copy { source, offset, length }
}

/// A file of 8 MiB on a file system of its own; none where there is no such file system to be had.
fn on(kind: &str, options: &[&str]) -> Option<(Mount, Loop, tempfile::TempDir, OpenMedium)> {
    let directory = tempfile::tempdir().unwrap();
    let device = Loop::new(&image(directory.path(), 512 << 20), 512)?;
    let made = Command::new(format!("mkfs.{kind}")).arg("-q").args(options).arg(&device.0).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("skipped, since nothing makes {kind} here");
        return None;
    }
    let mounted = Mount::new(&device.0, kind, None)?;
    let medium = OpenMedium::file(&image(mounted.0.path(), 8 << 20), super::options(512)).unwrap();
    Some((mounted, device, directory, medium))
}

#[test]
fn a_file_system_that_can_shares_the_blocks() {
    let Some((mounted, _device, _directory, medium)) = on("xfs", &["-m", "reflink=1"]) else { return };
    let mut bench = Bench::new();
    let namespace = bench.add(&medium);
    assert!(bench.backends.copies(namespace));
    let first = pattern(PART as usize, 1);
    bench.write(namespace, 0, &first).unwrap();
    // What is not there is not there afterwards either.
    bench.execute(namespace, copy(0, 1 << 20, 2 * PART)).unwrap();
    assert_eq!(
        bench.read(namespace, 1 << 20, 2 * PART).unwrap(),
        [first.clone(), vec![0; PART as usize]].concat()
    );
    let path = mounted.0.path().join("image");
    assert_eq!(fs::metadata(&path).unwrap().blocks() * 512, 2 * u64::from(PART));
    let extents = Command::new("filefrag").arg("-v").arg(&path).output().unwrap();
    assert_eq!(String::from_utf8(extents.stdout).unwrap().matches("shared").count(), 2);
    // Each is its own all the same.
    bench.write(namespace, 0, &pattern(4096, 9)).unwrap();
    assert_eq!(bench.read(namespace, 1 << 20, PART).unwrap(), first);

    let many: Vec<Done> = {
        for slot in 0..200 {
            let offset = (2 << 20) + u64::from(slot) * 4096;
            bench.backends.submit(token(slot), namespace, copy(4096, offset, 4096));
        }
        bench.finish(200)
    };
    for done in many {
        let offset = (2 << 20) + u64::from(done.token.slot) * 4096;
        let expected = match done.result {
            Ok(()) => &first[4096..8192],
            // More than the thread takes at a time.
            Err(error) => {
                assert_eq!(error, BlockError::Unsupported);
                &[0; 4096][..]
            }
        };
        assert_eq!(bench.read(namespace, offset, 4096).unwrap(), expected);
    }
    // Smaller than its blocks.
    assert_eq!(bench.execute(namespace, copy(512, 4 << 20, 512)), Err(BlockError::Unsupported));
    assert_eq!(bench.execute(namespace, copy(8 << 20, 0, 512)), Err(BlockError::OutOfRange));
    assert_eq!(bench.execute(namespace, copy(0, 8 << 20, 512)), Err(BlockError::OutOfRange));
    assert!(bench.backends.copies(namespace));
    bench.backends.remove(namespace, &mut bench.ring).unwrap();
}

#[test]
fn a_file_system_that_cannot_and_a_device_are_read_and_written() {
    let mut bench = Bench::new();
    let tmpfs = Mount::tmpfs(16 << 20);
    if let Some(mounted) = &tmpfs {
        let path = image(mounted.0.path(), 1 << 20);
        let namespace = bench.add(&OpenMedium::file(&path, options(512)).unwrap());
        assert!(bench.backends.copies(namespace));
        assert_eq!(bench.execute(namespace, copy(0, 4096, 4096)), Err(BlockError::Unsupported));
        assert!(!bench.backends.copies(namespace), "it says so for good");
    }
    if let Some((_mounted, device, _directory, medium)) = on("ext4", &[]) {
        let namespace = bench.add(&medium);
        assert_eq!(bench.execute(namespace, copy(0, 4096, 4096)), Err(BlockError::Unsupported));
        assert!(!bench.backends.copies(namespace));
        drop(device);
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(device) = Loop::new(&image(directory.path(), 1 << 20), 512) else { return };
    let namespace = bench.add(&OpenMedium::file(&device.0, options(512)).unwrap());
    assert!(!bench.backends.copies(namespace));
    assert_eq!(bench.execute(namespace, copy(0, 4096, 4096)), Err(BlockError::Unsupported));
    bench.backends.remove(namespace, &mut bench.ring).unwrap();
}

#[test]
fn memory_copies_in_place() {
    let mut bench = Bench::new();
    let medium = OpenMedium::ram(1 << 20, 512).unwrap();
    let namespace = bench.add(&medium);
    let bytes = pattern(3 * 512, 4);
    bench.write(namespace, 512, &bytes).unwrap();
    bench.execute(namespace, copy(1024, 8192, 1024)).unwrap();
    assert_eq!(bench.read(namespace, 8192, 1536).unwrap(), [&bytes[512..], &[0; 512]].concat());
    assert_eq!(bench.execute(namespace, copy(1 << 20, 0, 512)), Err(BlockError::OutOfRange));
    let protected = bench.add(&medium.with_options(None, true).unwrap());
    assert_eq!(bench.execute(protected, copy(0, 4096, 512)), Err(BlockError::ReadOnly));
}
