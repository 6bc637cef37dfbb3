//! Mocks of the processing seam.
#![allow(missing_docs)] // the macro makes an undocumented module for each mocked trait

use mockall::mock;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::{GroupId, InboxId};

use crate::processor::{
    Candidate, GroupProcessor, IdentityProcessor, JoinAnchor, Joined, PendingItem, PrepareError,
    Prepared, Turn, Verdict, WelcomeProcessor,
};
use crate::storage::{StorageError, WriteTxn};

mock! {
    /// A mocked processor of group envelopes; it hands out [`MockTurn`].
    #[derive(Debug)]
    pub GroupProcessor {}

    impl GroupProcessor for GroupProcessor {
        fn turn<'a, 't>(
            &'a self,
            txn: &mut WriteTxn<'t>,
            group: &GroupId,
        ) -> Result<Box<dyn Turn + 'a>, StorageError>;
        fn prepare<'t>(
            &self,
            txn: &mut WriteTxn<'t>,
            intent: &stored::Intent,
        ) -> Result<Result<Prepared, PrepareError>, StorageError>;
        fn discard<'t>(
            &self,
            txn: &mut WriteTxn<'t>,
            group: &GroupId,
            attempt: &stored::Attempt,
        ) -> Result<(), StorageError>;
    }
}

mock! {
    /// One mocked turn.
    #[derive(Debug)]
    pub Turn {}

    impl Turn for Turn {
        fn apply<'t>(
            &mut self,
            txn: &mut WriteTxn<'t>,
            item: &PendingItem,
        ) -> Result<Verdict, StorageError>;
        fn flush<'t>(&mut self, txn: &mut WriteTxn<'t>) -> Result<(), StorageError>;
        fn is_application(&self, item: &PendingItem) -> bool;
    }
}

mock! {
    /// A mocked processor of identity updates.
    #[derive(Debug)]
    pub IdentityProcessor {}

    impl IdentityProcessor for IdentityProcessor {
        fn apply<'t>(
            &self,
            txn: &mut WriteTxn<'t>,
            inbox: &InboxId,
            item: &PendingItem,
        ) -> Result<Verdict, StorageError>;
    }
}

mock! {
    /// A mocked processor of Welcomes; it hands out [`MockCandidate`].
    #[derive(Debug)]
    pub WelcomeProcessor {}

    impl WelcomeProcessor for WelcomeProcessor {
        fn inspect<'a, 't, 'p>(
            &'a self,
            txn: &mut WriteTxn<'t>,
            item: &PendingItem,
            pointee: Option<&'p PendingItem>,
        ) -> Result<Result<Box<dyn Candidate + 'a>, Verdict>, StorageError>;
    }
}

mock! {
    /// A mocked Welcome that may be installed.
    #[derive(Debug)]
    pub Candidate {}

    impl Candidate for Candidate {
        fn anchor(&self) -> JoinAnchor;
        fn install<'t>(self: Box<Self>, txn: &mut WriteTxn<'t>) -> Result<Joined, StorageError>;
    }
}
