//! The real programs, started from where Cargo has put them.
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// A program of ours.
///
/// # Panics
/// If it has not been built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    let built = test.ancestors().nth(2).expect("tests lie in deps").join(name);
    assert!(built.exists(), "{} is missing: cargo build --workspace --bins", built.display());
    built
}

/// A port nobody uses at the moment.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("some port is free");
    listener.local_addr().expect("it is bound").port()
}

/// A target that serves, until it is dropped or killed.
pub struct Target {
    process: Child,
    pub port: u16,
    pub nqn: String,
}

impl Target {
    /// Serves these namespaces on a free port.
    ///
    /// # Panics
    /// If it does not become ready.
    #[must_use]
    pub fn serve(place: &Path, namespaces: &[&str]) -> Self {
        Self::serve_at(free_port(), place, namespaces)
    }

    /// The same on a certain port.
    ///
    /// # Panics
    /// If it does not become ready.
    #[must_use]
    pub fn serve_at(port: u16, place: &Path, namespaces: &[&str]) -> Self {
        let nqn = format!("nqn.2014-08.org.example:e2e-{port}");
        let namespaces = namespaces.iter().flat_map(|namespace| ["--namespace", namespace]);
        let options: Vec<_> = ["--allow-any-host"].into_iter().chain(namespaces).collect();
        Self::serve_as(&nqn, port, place, &options)
    }

    /// A subsystem of this name, with these options of `ironside-target serve`.
    ///
    /// # Panics
    /// If it does not become ready.
    #[must_use]
    pub fn serve_as(nqn: &str, port: u16, place: &Path, options: &[&str]) -> Self {
        let listen = format!("127.0.0.1:{port}");
        let mut arguments = vec!["--reactors", "1", "--nqn", nqn, "--listen", &listen];
        arguments.extend(options);
        Self::start(port, nqn.into(), place, &arguments)
    }

    /// Serves what `target.toml` in this place says: a subsystem of this name, on this port.
    ///
    /// # Panics
    /// If it does not become ready.
    #[must_use]
    pub fn serve_file(port: u16, nqn: String, place: &Path) -> Self {
        let file = place.join("target.toml");
        Self::start(port, nqn, place, &["--config", file.to_str().expect("a plain path")])
    }

    fn start(port: u16, nqn: String, place: &Path, arguments: &[&str]) -> Self {
        let log = File::options().create(true).append(true).open(place.join("target.log"));
        let mut process = Command::new(program("ironside-target"))
            .arg("serve")
            .args(arguments)
            .env("XDG_STATE_HOME", place)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.expect("a log can be written"))
            .spawn()
            .expect("the target starts");
        let output = process.stdout.take().expect("it was piped");
        let ready =
            BufReader::new(output).lines().map_while(Result::ok).any(|line| line.starts_with("ready"));
        if !ready {
            let log = std::fs::read_to_string(place.join("target.log")).unwrap_or_default();
            panic!("the target did not become ready:\n{log}");
        }
        Self { process, port, nqn }
    }

    /// Its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Ends it as a crash would. Its port may be used again.
    pub fn crash(mut self) -> u16 {
        self.end();
        self.port
    }

    fn end(&mut self) {
        // It may have ended by itself; the test sees that elsewhere.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end();
    }
}

/// The initiator's command line with a runtime directory of its own, and what it has attached.
pub struct Initiator {
    pub place: PathBuf,
}

impl Initiator {
    #[must_use]
    pub fn new(place: &Path) -> Self {
        Self { place: place.join("run") }
    }

    /// Runs `ironside` to its end.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Output {
        Command::new(program("ironside"))
            .args(arguments)
            .env("IRONSIDE_RUNTIME_DIR", &self.place)
            .stdin(Stdio::null())
            .output()
            .expect("the initiator starts")
    }

    /// Runs `ironside`, which has to succeed; gives what it printed.
    ///
    /// # Panics
    /// If it fails.
    pub fn succeed<S: AsRef<OsStr>>(&self, arguments: &[S]) -> String {
        let output = self.run(arguments);
        let words: Vec<_> = arguments.iter().map(|word| word.as_ref().to_string_lossy()).collect();
        assert!(output.status.success(), "ironside {}: {}", words.join(" "), text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs `ironside`, which has to fail with this exit status; gives what it said.
    ///
    /// # Panics
    /// If it does anything else.
    pub fn fail<S: AsRef<OsStr>>(&self, status: i32, arguments: &[S]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(status), "{}", text(&output.stderr));
        text(&output.stderr)
    }

    /// Attaches the target's volume; gives what `connect -o json` printed.
    ///
    /// # Panics
    /// If that fails.
    pub fn connect(&self, target: &Target, more: &[&str]) -> Value {
        let port = target.port.to_string();
        let mut arguments =
            vec!["connect", "-t", "rdma", "-a", "127.0.0.1", "-s", &port, "-n", &target.nqn, "-o", "json"];
        arguments.extend(more);
        serde_json::from_str(&self.succeed(&arguments)).expect("it prints JSON")
    }

    /// What `list -o json` says is attached.
    ///
    /// # Panics
    /// If it fails.
    pub fn list(&self) -> Vec<Value> {
        let mut list: Value = serde_json::from_str(&self.succeed(&["list", "-o", "json"])).expect("JSON");
        match list["Devices"].take() {
            Value::Array(devices) => devices,
            other => panic!("Devices is {other}"),
        }
    }
}

impl Drop for Initiator {
    fn drop(&mut self) {
        // A test that failed leaves nothing behind.
        for device in std::fs::read_dir(&self.place).into_iter().flatten().flatten() {
            self.run(&[OsStr::new("disconnect"), OsStr::new("--force"), &device.file_name()]);
        }
    }
}

/// Runs a command, which has to succeed; gives what it printed.
///
/// # Panics
/// If it fails.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = [text(&output.stdout), text(&output.stderr)].concat();
    assert!(output.status.success(), "{program} {}: {said}", arguments.join(" "));
    text(&output.stdout)
}

/// What a program wrote.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
