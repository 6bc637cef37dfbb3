//! Two members over databases in memory.

#![allow(dead_code)] // Each test executable uses a part of it.

use std::sync::Arc;

use openmls::group::MlsGroup;
use xmtp_core::runtime::{Runtime, SimulatedRuntime};
use xmtp_core::storage::{Database, Durability, StorageError, WriteTxn};
use xmtp_core::testing::memory::MemoryDisk;
use xmtp_mls::group::{
    BuiltCommit, CommitPlan, GroupContext, GroupFault, NewConversation, NewGroup, Preset,
    build_commit, create_group, merge_pending, stage_join,
};
use xmtp_mls::key_package::{FetchedPackage, check, make, named_key};
use xmtp_mls::welcome::{Opened, WelcomeFault, open, wrap};
use xmtp_mls::{Installation, Provider};
use xmtp_proto::backend::v1::WelcomeMessage;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::id::{GroupId, InboxId, SequenceId};

/// One client: a database and an installation.
pub(crate) struct Client {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) database: Database,
    pub(crate) installation: Installation,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Group(#[from] GroupFault),
    #[error(transparent)]
    Welcome(#[from] WelcomeFault),
}

pub(crate) fn client(seed: u8) -> Client {
    let runtime: Arc<dyn Runtime> = Arc::new(SimulatedRuntime::new(seed.into()));
    let database = Database::open(MemoryDisk::new().open(), runtime.clone()).unwrap();
    let inbox = InboxId::from_bytes([seed; 32]);
    let installation = Installation::generate(runtime.as_ref(), inbox);
    Client {
        runtime,
        database,
        installation,
    }
}

impl Client {
    pub(crate) fn write<T>(
        &self,
        f: impl FnOnce(&mut WriteTxn<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.database.write(Durability::Ordered, f)
    }

    /// Makes a key package and checks it as one that was fetched.
    pub(crate) fn package(&self) -> FetchedPackage {
        let made = self
            .write(|txn| Ok(make(txn, &self.installation).unwrap()))
            .unwrap();
        let Some(Payload::KeyPackage(package)) = made.envelope.payload else {
            panic!("no key package");
        };
        let bytes = package.key_package_tls_serialized;
        let (id, inbox) = (self.installation.id(), self.installation.inbox());
        check(&bytes, &id, &inbox, self.runtime.now_ns()).unwrap()
    }

    pub(crate) fn create(&self, conversation: NewConversation) -> (GroupId, MlsGroup) {
        let new = NewGroup {
            conversation,
            creator_sequence: SequenceId::from(3),
            name: "name".to_owned(),
            description: String::new(),
            image_url: String::new(),
            app_data: String::new(),
            disappearing: None,
        };
        self.write(|txn| Ok(create_group(txn, &self.installation, &new)?))
            .unwrap()
    }

    /// Adds installations in one commit and merges it, as its echo would.
    pub(crate) fn add(&self, group: &mut MlsGroup, added: &[FetchedPackage]) -> BuiltCommit {
        self.write(|txn| {
            let mut context = GroupContext::of(group).unwrap();
            for package in added {
                context.members.insert(package.inbox, SequenceId::from(4));
            }
            let plan = CommitPlan {
                adds: added
                    .iter()
                    .map(|package| package.package.clone())
                    .collect(),
                membership: Some(context.to_membership()),
                ..CommitPlan::default()
            };
            let provider = Provider::new(txn);
            let built = build_commit(group, &provider, &self.installation, plan)?;
            merge_pending(group, &provider)?;
            Ok(built)
        })
        .unwrap()
    }

    /// Opens the Welcome that is for this client and joins.
    pub(crate) fn join(&self, wrapped: &[WelcomeMessage]) -> MlsGroup {
        use xmtp_proto::backend::v1::welcome_message::Version;
        let own = self.installation.id();
        let is_for = |message: &&WelcomeMessage, key: &[u8]| match message.version.as_ref() {
            Some(Version::V1(v1)) => v1.installation_key == key,
            Some(Version::WelcomePointer(pointer)) => pointer.installation_key == key,
            None => false,
        };
        let find = |key: &[u8]| wrapped.iter().find(|message| is_for(message, key)).unwrap();
        self.write(|txn| {
            let opened = open(find(own.as_bytes()), |public| {
                named_key(txn, public).map_err(Failure::from)
            })?;
            let unwrapped = match opened {
                Opened::Welcome(welcome) => welcome,
                Opened::Pointer(pointer) => {
                    let found = find(pointer.topic().identifier());
                    pointer.open(found.version.as_ref().unwrap())?
                }
            };
            assert_eq!(unwrapped.anchor, Some(SequenceId::from(9)));
            let staged = stage_join(txn, unwrapped.welcome).unwrap();
            staged
                .check(&self.installation, SequenceId::from(10))
                .unwrap();
            Ok(staged.install(txn)?)
        })
        .unwrap()
    }

    pub(crate) fn wrapped(
        &self,
        added: &[FetchedPackage],
        built: &BuiltCommit,
    ) -> Vec<WelcomeMessage> {
        let recipients: Vec<_> = added
            .iter()
            .map(|package| package.recipient.clone())
            .collect();
        let welcome = built.welcome.as_ref().unwrap();
        wrap(
            self.runtime.as_ref(),
            &recipients,
            welcome,
            SequenceId::from(9),
        )
        .unwrap()
    }
}

/// Two clients in one group.
pub(crate) fn pair() -> (Client, MlsGroup, Client, MlsGroup) {
    let (one, two) = (client(1), client(2));
    let (_, mut group) = one.create(NewConversation::Group(Preset::AllMembers));
    let added = [two.package()];
    let built = one.add(&mut group, &added);
    let joined = two.join(&one.wrapped(&added, &built));
    (one, group, two, joined)
}
