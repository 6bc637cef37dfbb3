//! The people of a scenario: their disks, their clients, and the crash that one of them meets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use xmtp_core::limits::DEFAULT_CONSUMER_LEASE_DURATION;
use xmtp_core::storage::{Storage, verify};
use xmtp_core::sync::SyncError;
use xmtp_core::testing::faulty::{Faulty, Side};
use xmtp_core::testing::memory::MemoryDisk;
use xmtp_mls::{Account, Client};
use xmtp_proto::{GroupId, InboxId, MessageId};
use xmtp_storage_sled::SledStorage;
use xmtp_storage_sqlite::{DatabaseKey, SqliteStorage};

use super::forge::Forged;
use super::power::{Metered, NO_CHECKPOINT_PAGES};
use super::wire::{Shown, Wire};
use super::{PlayError, Scenario, Told};
use crate::{InProcessTransport, ShiftedRuntime, TestBackend};

/// How much later a process is opened again after it died, so that the lease of its default
/// consumer has lapsed.
const LEASE_IS_OVER: Duration =
    DEFAULT_CONSUMER_LEASE_DURATION.saturating_add(Duration::from_secs(1));

/// How fast the timers of somebody in a hurry run.
const HURRY: u32 = 20;

/// How long somebody whose machine died may take to receive again what was lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// One day, in seconds.
const DAY: u64 = 24 * 60 * 60;

/// Which storage engine the people use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The strict engine in memory.
    Memory,
    /// Encrypted SQLite.
    Sqlite,
    /// Sealed sled.
    Sled,
}

/// A crash that one person meets once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashAt {
    /// Whose process dies.
    pub who: String,
    /// At which of their commits, from 1.
    pub commit: u64,
    /// Before or after it.
    pub side: Side,
    /// Whether the machine dies too, which sled cannot show.
    pub power_loss: Option<PowerLoss>,
}

/// What a power loss takes of the commits since the last flushed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerLoss {
    /// All of them.
    All,
    /// The newer half.
    Half,
}

/// What is left of a person at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersonState {
    /// The texts of each group by its name, in delivery order.
    pub texts: BTreeMap<String, Vec<String>>,
    /// Whether each group is active.
    pub active: BTreeMap<String, bool>,
    /// What was told of envelopes during the play and still holds, by label.
    pub verdicts: BTreeMap<String, String>,
}

enum Disk {
    Memory(MemoryDisk),
    Sqlite(PathBuf),
    Sled(PathBuf),
}

/// One person.
pub(super) struct Person {
    disk: Disk,
    secret: [u8; 32],
    faulty: Option<Arc<Faulty>>,
    storage: Option<Arc<dyn Storage>>,
    /// The same engine, where a power loss on SQLite is planned.
    metered: Option<Arc<Metered>>,
    client: Option<Client>,
    /// Commits of earlier lives.
    commits: u64,
    /// How often the process died.
    deaths: u32,
    /// Whether the last death took commits along.
    has_lost: bool,
    /// What is shown on this person's wire in the place of stored envelopes.
    shown: Shown,
    /// Whether timers run faster.
    hurries: bool,
    /// How far this person's clock is ahead.
    later: Duration,
}

/// Texts that the default consumers handed over.
#[derive(Default)]
pub(super) struct Handed {
    /// Every one, with whom it was handed to.
    pub(super) all: BTreeSet<(String, MessageId)>,
    /// How many new ones the present step has seen, over its tries.
    pub(super) in_step: usize,
    /// How often one was handed over again, by whom.
    pub(super) again: BTreeMap<String, u32>,
}

/// Everybody, and the backend between them.
pub struct World {
    pub(super) people: BTreeMap<String, Person>,
    pub(super) groups: BTreeMap<String, GroupId>,
    /// What came out of the default consumers.
    pub(super) handed: Handed,
    /// What rogues made, by label.
    pub(super) forged: BTreeMap<String, Forged>,
    /// Keys that rogues have used up for commits and proposals, over all groups.
    pub(super) used: u32,
    /// What was told last of an envelope at somebody's, by both names.
    pub(super) verdicts: BTreeMap<(String, String), Told>,
    backend: TestBackend,
    loses_power: bool,
    crash: Option<CrashAt>,
    home: tempfile::TempDir,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("people", &self.people.len())
            .finish_non_exhaustive()
    }
}

impl World {
    /// Starts a backend and an empty disk for each person.
    ///
    /// # Errors
    /// When the temporary folder cannot be made.
    pub async fn start(
        scenario: &Scenario,
        engine: Engine,
        crash: Option<CrashAt>,
    ) -> Result<Self, PlayError> {
        let home = tempfile::tempdir()?;
        let mut world = Self {
            people: BTreeMap::new(),
            groups: BTreeMap::new(),
            handed: Handed::default(),
            forged: BTreeMap::new(),
            used: 0,
            verdicts: BTreeMap::new(),
            backend: TestBackend::start().await,
            loses_power: crash
                .as_ref()
                .is_some_and(|crash| crash.power_loss.is_some()),
            crash,
            home,
        };
        let people = &scenario.people;
        for (index, name) in people.iter().enumerate() {
            // A device has the secret of its owner.
            let device = scenario.devices.iter().find(|(device, _)| device == name);
            let owner = device.and_then(|(_, owner)| people.iter().position(|one| one == owner));
            let index = owner.unwrap_or(index);
            let path = world.home.path().join(name);
            let disk = match engine {
                Engine::Memory => Disk::Memory(MemoryDisk::new()),
                Engine::Sqlite => Disk::Sqlite(path.with_extension("db")),
                Engine::Sled => Disk::Sled(path),
            };
            let person = Person {
                disk,
                secret: [index as u8 + 1; 32],
                faulty: None,
                storage: None,
                metered: None,
                client: None,
                commits: 0,
                deaths: 0,
                has_lost: false,
                shown: Shown::default(),
                hurries: false,
                later: Duration::ZERO,
            };
            world.people.insert(name.clone(), person);
        }
        Ok(world)
    }

    /// Answers the client of a person, opening it when it is closed or its process has died.
    ///
    /// # Errors
    /// When it does not open, which a crash in the middle of it makes happen.
    pub(super) async fn client(&mut self, who: &str) -> Result<Client, PlayError> {
        let inner = self.backend();
        let crash = self.crash.clone().filter(|crash| crash.who == who);
        let person = self.person(who)?;
        if person.is_dead() {
            person.bury(crash.as_ref()).await?;
            person.deaths += 1;
            person.has_lost = crash
                .as_ref()
                .is_some_and(|crash| crash.power_loss.is_some());
            if crash.is_some() {
                self.crash = None;
            }
        }
        let crash = self.crash.clone().filter(|crash| crash.who == who);
        let loses_power = self.loses_power;
        let person = self.person(who)?;
        if let Some(client) = &person.client {
            return Ok(client.clone());
        }
        let mut storage = person.storage(loses_power)?;
        person.storage = Some(storage.clone());
        if let (Disk::Sqlite(path), true) = (&person.disk, loses_power) {
            let metered = Metered::new(storage, path);
            person.metered = Some(metered.clone());
            storage = metered;
        }
        let faulty = Faulty::new(storage);
        if let Some(crash) = &crash
            && crash.commit > person.commits
        {
            faulty.crash_at_commit(crash.commit - person.commits, crash.side);
        }
        person.faulty = Some(faulty.clone());
        let shown = person.shown.clone();
        let client = Client::builder()
            .storage(faulty)
            .transport(Wire { inner, shown })
            .runtime(person.runtime())
            .account(Account::from_wallet_secret(&person.secret)?)
            .build()
            .await?;
        person.client = Some(client.clone());
        if std::mem::take(&mut person.has_lost) {
            // What an earlier step received may be gone, and is there to be received again; what
            // is blocked stays so.
            match client.sync_all_within(PATIENCE).await {
                Ok(_) | Err(SyncError::Incomplete(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(client)
    }

    /// Answers the inbox of a person.
    pub(super) fn inbox(&self, who: &str) -> Result<InboxId, PlayError> {
        Ok(Account::from_wallet_secret(&self.secret(who)?)?.inbox_id())
    }

    /// Answers the secret of a person's wallet.
    pub(super) fn secret(&self, who: &str) -> Result<[u8; 32], PlayError> {
        let person = self.people.get(who);
        let person = person.ok_or(PlayError::Unknown(who.to_owned()))?;
        Ok(person.secret)
    }

    /// Answers a way to the backend that shows what is stored there.
    pub(super) fn backend(&self) -> InProcessTransport {
        self.backend.in_process()
    }

    /// Answers what is shown on a person's wire.
    pub(super) fn shown(&mut self, who: &str) -> Result<Shown, PlayError> {
        Ok(self.person(who)?.shown.clone())
    }

    /// Makes a person's timers run faster from the next opening on.
    pub(super) fn hurry(&mut self, who: &str) -> Result<(), PlayError> {
        self.person(who)?.hurries = true;
        Ok(())
    }

    /// Sets how far a person's clock is ahead from the next opening on.
    pub(super) fn be_later(&mut self, who: &str, days: u32) -> Result<(), PlayError> {
        self.person(who)?.later = Duration::from_secs(DAY * u64::from(days));
        Ok(())
    }

    /// Tells whether a person's process has died since its client was opened.
    pub(super) fn has_died(&self, who: &str) -> bool {
        self.people.get(who).is_some_and(Person::is_dead)
    }

    /// Tells whether the machine of a person went dark.
    pub(super) fn has_lost_power(&self, who: &str) -> bool {
        let deaths = self.people.get(who).map_or(0, |person| person.deaths);
        self.loses_power && deaths > 0
    }

    /// Counts how many texts may have been handed over to a person again: one for each death, or
    /// any number where the machine died too.
    pub(super) fn repeats(&self, who: &str) -> u32 {
        match self.has_lost_power(who) {
            true => u32::MAX,
            false => self.people.get(who).map_or(0, |person| person.deaths),
        }
    }

    /// Closes a person's client.
    pub(super) async fn close(&mut self, who: &str) -> Result<(), PlayError> {
        let person = self.person(who)?;
        if person.is_dead() {
            // Whoever opens it again finds it dead.
            return Ok(());
        }
        person.bury(None).await
    }

    /// Counts the commits of a person over all their lives.
    ///
    /// # Errors
    /// When nobody has that name.
    pub fn commits(&mut self, who: &str) -> Result<u64, PlayError> {
        let person = self.person(who)?;
        let current = person.faulty.as_ref().map_or(0, |faulty| faulty.commits());
        Ok(person.commits + current)
    }

    /// Checks the invariants of every database, then closes everything.
    ///
    /// # Errors
    /// When a database breaks a rule.
    pub async fn end(mut self) -> Result<(), PlayError> {
        let names: Vec<String> = self.people.keys().cloned().collect();
        for name in names {
            let mut checked = self.check(&name).await;
            if checked.is_err() && self.has_died(&name) {
                checked = self.check(&name).await;
            }
            checked?;
            self.close(&name).await?;
        }
        self.backend.stop().await;
        Ok(())
    }

    async fn check(&mut self, who: &str) -> Result<(), PlayError> {
        let database = self.client(who).await?.engine().context().database.clone();
        verify::verify_database(&database)
            .map_err(|faults| PlayError::Broken(format!("{who}: {faults:?}")))
    }

    fn person(&mut self, who: &str) -> Result<&mut Person, PlayError> {
        self.people
            .get_mut(who)
            .ok_or(PlayError::Unknown(who.to_owned()))
    }
}

impl Person {
    fn is_dead(&self) -> bool {
        self.faulty.as_ref().is_some_and(|faulty| faulty.is_dead())
    }

    fn runtime(&self) -> Arc<ShiftedRuntime> {
        let by = LEASE_IS_OVER * self.deaths + self.later;
        match self.hurries {
            true => ShiftedRuntime::hasty(by, HURRY),
            false => ShiftedRuntime::ahead(by),
        }
    }

    fn storage(&self, loses_power: bool) -> Result<Arc<dyn Storage>, PlayError> {
        Ok(match &self.disk {
            Disk::Memory(disk) => disk.open(),
            Disk::Sqlite(path) => {
                let mut options = SqliteStorage::options(path).key(DatabaseKey::new([9; 32]));
                if loses_power {
                    options = options.checkpoint_pages(NO_CHECKPOINT_PAGES);
                }
                options.open()?
            }
            Disk::Sled(path) => SledStorage::options(path)
                .key(DatabaseKey::new([9; 32]))
                .open()?,
        })
    }

    /// Lets go of the client and its engine; on a power loss unflushed commits go too.
    async fn bury(&mut self, crash: Option<&CrashAt>) -> Result<(), PlayError> {
        let loss = crash.and_then(|crash| crash.power_loss);
        let mut left = None;
        if let (Disk::Sqlite(path), Some(metered), Some(loss)) =
            (&self.disk, self.metered.take(), loss)
        {
            // Before the engine is closed, which would tidy the log up.
            let path = path.with_extension(format!("{}.db", self.deaths));
            metered.lose_power(loss, &path)?;
            left = Some(path);
        }
        if let Some(client) = self.client.take() {
            // A dead engine answers that it is closed, which is what is wanted.
            let _ = client.close().await;
        }
        if let Some(faulty) = self.faulty.take() {
            self.commits += faulty.commits();
        }
        if let Some(storage) = self.storage.take() {
            // The files of a process that died are free again.
            let _ = storage.close();
        }
        if let (Disk::Memory(disk), Some(loss)) = (&self.disk, loss) {
            disk.lose_unflushed(match loss {
                PowerLoss::All => 0,
                PowerLoss::Half => disk.unflushed() / 2,
            });
        }
        if let Some(path) = left {
            self.disk = Disk::Sqlite(path);
        }
        Ok(())
    }
}
