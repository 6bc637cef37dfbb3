//! A member that is openmls alone: its state is in memory, and nothing checks it but openmls.

use openmls::group::{MlsGroup, StagedWelcome};
use openmls::prelude::{
    CredentialWithKey, KeyPackage, MlsMessageIn, ProcessedMessageContent, Welcome,
};
use tls_codec::DeserializeBytes;
use xmtp_mls::group::join_config;
use xmtp_mls::key_package::FetchedPackage;
use xmtp_mls::{CIPHERSUITE, Installation};

use crate::nothing::NothingProvider;
use crate::report::Failure;

/// A member without a database.
pub(crate) struct Bare {
    group: MlsGroup,
    provider: NothingProvider,
}

/// The keys of a member that is not in its group yet.
pub(crate) struct Guest {
    provider: NothingProvider,
}

impl Guest {
    /// Makes keys and a key package that says what `like` says.
    pub(crate) fn new(
        installation: &Installation,
        like: FetchedPackage,
    ) -> Result<(Self, FetchedPackage), Failure> {
        let provider = NothingProvider::default();
        let leaf = like.package.leaf_node();
        let credential = CredentialWithKey {
            credential: leaf.credential().clone(),
            signature_key: installation.id().as_bytes().to_vec().into(),
        };
        let bundle = KeyPackage::builder()
            .key_package_lifetime(*like.package.life_time())
            .key_package_extensions(like.package.extensions().clone())
            .leaf_node_capabilities(leaf.capabilities().clone())
            .leaf_node_extensions(leaf.extensions().clone())
            .build(CIPHERSUITE, &provider, installation, credential)?;
        let package = bundle.key_package().clone();
        Ok((Self { provider }, FetchedPackage { package, ..like }))
    }

    /// Joins its group.
    pub(crate) fn join(self, welcome: Welcome) -> Result<Bare, Failure> {
        let staged = StagedWelcome::build_from_welcome(&self.provider, &join_config(), welcome)?
            .skip_lifetime_validation()
            .build()?;
        Ok(Bare {
            group: staged.into_group(&self.provider)?,
            provider: self.provider,
        })
    }
}

impl Bare {
    /// Makes an equal of a member, for messages alone: it has no keys to follow a commit with.
    pub(crate) fn equal(group: MlsGroup) -> Self {
        Self {
            group,
            provider: NothingProvider::default(),
        }
    }

    /// Decrypts a message.
    pub(crate) fn read(&mut self, mls: &[u8]) -> Result<(), Failure> {
        match self.process(mls)? {
            ProcessedMessageContent::ApplicationMessage(message) => {
                std::hint::black_box(message.into_bytes());
                Ok(())
            }
            _ => Err("a message is none".into()),
        }
    }

    /// Applies a commit.
    pub(crate) fn follow(&mut self, mls: &[u8]) -> Result<(), Failure> {
        match self.process(mls)? {
            ProcessedMessageContent::StagedCommitMessage(staged) => {
                Ok(self.group.merge_staged_commit(&self.provider, *staged)?)
            }
            _ => Err("a commit is none".into()),
        }
    }

    fn process(&mut self, mls: &[u8]) -> Result<ProcessedMessageContent, Failure> {
        let message = MlsMessageIn::tls_deserialize_exact_bytes(mls)?;
        let message = message.try_into_protocol_message()?;
        let processed = self.group.process_message(&self.provider, message)?;
        Ok(processed.into_content())
    }
}
