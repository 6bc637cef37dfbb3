//! A PostgreSQL server for tests.
//!
//! Each test process has at most one that its tests share, and tests that stop or kill a server start
//! their own. A small shell is the parent of the server: it waits for the end of its input, which
//! comes when the test process ends, however that happens, and then stops the server by its pid and
//! removes its folder. The server listens on a socket in that folder and on no port, but for one with
//! TLS, which no server offers on such a socket.

use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Where Debian keeps the programs of each version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// What a folder must hold, to be taken.
const PROGRAMS: [&str; 4] = ["initdb", "postgres", "psql", "pg_basebackup"];

/// How long a server may take to start or to stop; it can only fail a test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Settings of every server: many connections, replicas, and short memories.
const SETTINGS: &str = "
listen_addresses = ''
max_connections = 200
wal_level = replica
max_wal_senders = 10
hot_standby = on
shared_buffers = 32MB
log_min_messages = warning
max_prepared_transactions = 0
";

/// Stops the server when the input ends, and removes its folder.
const WATCH: &str = "\"$1/postgres\" -D \"$2/data\" -k \"$2\" >>\"$2/log\" 2>&1 & server=$!
cat >/dev/null
kill -INT $server 2>/dev/null
wait $server
if [ ! -e \"$2/keep\" ]; then rm -rf \"$2\"; fi";

/// Finds the folder of the programs of PostgreSQL; `None` if there is none.
pub fn find_postgres() -> Option<PathBuf> {
    let complete = |folder: &PathBuf| {
        PROGRAMS
            .iter()
            .all(|program| folder.join(program).is_file())
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let debian = std::fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = debian.map(|entry| entry.path().join("bin")).collect();
    versions.sort();
    folders.extend(versions.into_iter().rev());
    folders.into_iter().find(complete)
}

/// A running server, stopped when it is dropped and at the latest when the process ends.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    folder: PathBuf,
    watch: Option<Child>,
}

impl Postgres {
    /// Returns the server that all tests of this process share; it does not sync its disk.
    ///
    /// - Returns `None` and says so where PostgreSQL is not installed, unless `CI` is set: there
    ///   that is a failure.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Postgres>> = OnceLock::new();
        SHARED.get_or_init(|| Self::start("fsync = off\n")).as_ref()
    }

    /// Starts a server of its own, with more settings; `None` as in [`Postgres::shared`].
    pub fn start(settings: &str) -> Option<Self> {
        Self::start_with(settings, &[])
    }

    /// Starts a server of its own that offers TLS, with this certificate and its key as PEM, on the
    /// address that is returned too; `None` as in [`Postgres::shared`].
    pub fn start_with_tls(certificate: &str, key: &str) -> Option<(Self, Ipv4Addr)> {
        // Its port is the usual one, so its address has to be its own.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = (std::process::id() << 3).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let [_, high, middle, low] = number.to_be_bytes();
        let address = Ipv4Addr::new(127, 128 | high, middle, low);
        let settings = format!(
            "fsync = off\nlisten_addresses = '{address}'\nssl = on\n\
             ssl_cert_file = 'certificate.pem'\nssl_key_file = 'key.pem'\n"
        );
        let files = [("certificate.pem", certificate), ("key.pem", key)];
        Some((Self::start_with(&settings, &files)?, address))
    }

    fn start_with(settings: &str, files: &[(&str, &str)]) -> Option<Self> {
        let programs = found()?;
        let folder = new_folder().expect("a folder for the server");
        let mut initdb = as_owner(&programs.join("initdb"));
        initdb.args([
            "--auth=trust",
            "--username=xmtp",
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C",
        ]);
        initdb.arg("--pgdata").arg(folder.join("data"));
        run(&mut initdb);
        append(
            &folder.join("data/postgresql.conf"),
            &format!("{SETTINGS}{settings}"),
        );
        for (name, text) in files {
            own_file(&folder.join("data").join(name), text).expect("a file of the server");
        }
        Some(Self::run(programs, folder))
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(".s.PGSQL.5432")
    }

    /// Starts a streaming replica of this server.
    pub fn replica(&self) -> Self {
        let folder = new_folder().expect("a folder for the replica");
        let mut copy = as_owner(&self.programs.join("pg_basebackup"));
        copy.arg("--host")
            .arg(&self.folder)
            .args(["--username=xmtp", "--write-recovery-conf"]);
        copy.args(["--wal-method=stream", "--checkpoint=fast", "--no-sync"]);
        copy.arg("--pgdata").arg(folder.join("data"));
        run(&mut copy);
        Self::run(self.programs.clone(), folder)
    }

    fn run(programs: PathBuf, folder: PathBuf) -> Self {
        let mut server = Self {
            programs,
            folder,
            watch: None,
        };
        server.resume();
        server
    }

    /// Starts the server again on what it left on disk.
    pub fn resume(&mut self) {
        let mut shell = as_owner(Path::new("/bin/sh"));
        shell
            .args(["-c", WATCH, "sh"])
            .arg(&self.programs)
            .arg(&self.folder);
        shell
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.watch = Some(shell.spawn().expect("a shell starts"));
        let _ = std::fs::remove_file(self.folder.join("keep"));
        let deadline = Instant::now() + PATIENCE;
        while !self.accepts() {
            assert!(
                Instant::now() < deadline,
                "the server starts in time: {}",
                self.log()
            );
            std::thread::yield_now();
        }
    }

    /// Kills the server as a crash would, and waits until it is gone.
    pub fn kill(&mut self) {
        std::fs::write(self.folder.join("keep"), "").expect("a mark");
        let pid = std::fs::read_to_string(self.folder.join("data/postmaster.pid"));
        let pid = pid.expect("a running server");
        let pid = pid.lines().next().expect("a pid");
        // Its children go with it, so that nothing holds its memory when it starts again.
        let children = Command::new("ps")
            .args(["-o", "pid=", "--ppid", pid])
            .output();
        let children = String::from_utf8(children.expect("ps starts").stdout).expect("pids");
        run(Command::new("kill")
            .args(["-KILL", pid])
            .args(children.split_whitespace()));
        self.stop();
        let _ = std::fs::remove_file(self.folder.join("data/postmaster.pid"));
    }

    /// Stops the server; its folder goes unless it is marked.
    fn stop(&mut self) {
        if let Some(mut watch) = self.watch.take() {
            drop(watch.stdin.take());
            let _ = watch.wait();
        }
    }

    /// Creates an empty database and returns its address.
    pub fn database(&self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.address(&name)
    }

    /// Returns the address of a database on this server.
    pub fn address(&self, database: &str) -> String {
        let folder = self
            .folder
            .to_str()
            .expect("a folder in text")
            .replace('/', "%2F");
        format!("postgresql://xmtp@{folder}/{database}")
    }

    /// Runs a statement in a database and returns what it prints.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let mut psql = self.psql(database, sql);
        let output = psql.output().expect("psql starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout)
            .expect("text")
            .trim()
            .to_owned()
    }

    fn psql(&self, database: &str, sql: &str) -> Command {
        let mut psql = Command::new(self.programs.join("psql"));
        psql.arg("--host")
            .arg(&self.folder)
            .args(["--username=xmtp", "--no-psqlrc", "-qtAX"]);
        psql.args([
            "--set=ON_ERROR_STOP=1",
            "--dbname",
            database,
            "--command",
            sql,
        ]);
        psql
    }

    fn accepts(&self) -> bool {
        let output = self.psql("postgres", "SELECT 1").output();
        output.is_ok_and(|output| output.status.success())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.watch.is_some() {
            self.stop();
        } else {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

fn found() -> Option<PathBuf> {
    let found = find_postgres();
    if found.is_none() {
        let message = "PostgreSQL is not installed: neither PATH nor /usr/lib/postgresql has it";
        assert!(
            std::env::var_os("CI").is_none_or(|ci| ci != "true"),
            "{message}"
        );
        say(message);
    }
    found
}

/// Tells whoever runs the tests what was not tested.
#[allow(clippy::print_stderr)]
fn say(message: &str) {
    eprintln!("NOT TESTED: {message}");
}

/// PostgreSQL refuses to run as root; then another user runs it.
struct Owner {
    uid: u32,
    gid: u32,
}

fn owner() -> Option<&'static Owner> {
    static OWNER: OnceLock<Option<Owner>> = OnceLock::new();
    let find = || {
        if id(&["-u"]) != Some(0) {
            return None;
        }
        let user = ["postgres", "nobody"]
            .into_iter()
            .find(|user| id(&["-u", user]).is_some());
        let user = user.expect("a user that is not root");
        let (uid, gid) = (id(&["-u", user]), id(&["-g", user]));
        uid.zip(gid).map(|(uid, gid)| Owner { uid, gid })
    };
    OWNER.get_or_init(find).as_ref()
}

fn id(arguments: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(arguments).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

fn as_owner(program: &Path) -> Command {
    let mut command = Command::new(program);
    // The folder of the test may be closed to the other user.
    command.current_dir("/");
    if let Some(owner) = owner() {
        command.uid(owner.uid).gid(owner.gid);
    }
    command
}

fn new_folder() -> io::Result<PathBuf> {
    let folder = tempfile::Builder::new()
        .prefix("xmtp-pg-")
        .tempdir()?
        .keep();
    if let Some(owner) = owner() {
        std::os::unix::fs::chown(&folder, Some(owner.uid), Some(owner.gid))?;
    }
    Ok(folder)
}

/// Writes a file that only the owner of the server may read.
fn own_file(path: &Path, text: &str) -> io::Result<()> {
    std::fs::write(path, text)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    match owner() {
        Some(owner) => std::os::unix::fs::chown(path, Some(owner.uid), Some(owner.gid)),
        None => Ok(()),
    }
}

fn append(path: &Path, text: &str) {
    let old = std::fs::read_to_string(path).expect("the server's settings");
    std::fs::write(path, old + text).expect("the server's settings");
}

fn run(command: &mut Command) {
    let output = command.output().expect("the program starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
}
