//! Mocks of the storage seam.
#![allow(missing_docs)] // the macro makes an undocumented module for each mocked trait

use std::time::Duration;

use mockall::mock;

use crate::storage::{
    Capability, Durability, KeyRange, Page, Rows, Snapshot, Storage, StorageError, TableId,
    TableInfo, WriteBatch, Writer,
};

mock! {
    /// A mocked engine; it hands out [`MockSnapshot`] and [`MockWriter`].
    #[derive(Debug)]
    pub Storage {}

    impl Storage for Storage {
        fn capability(&self) -> Capability;
        fn open_tables(&self, tables: &[TableInfo]) -> Result<(), StorageError>;
        fn snapshot<'a>(&'a self) -> Result<Box<dyn Snapshot + 'a>, StorageError>;
        fn writer<'a>(
            &'a self,
            patience: Duration,
            durability: Durability,
        ) -> Result<Box<dyn Writer + 'a>, StorageError>;
        fn version(&self) -> Result<u64, StorageError>;
        fn close(&self) -> Result<(), StorageError>;
    }
}

mock! {
    /// A mocked snapshot.
    #[derive(Debug)]
    pub Snapshot {}

    impl Snapshot for Snapshot {
        fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError>;
        fn get_many<'a>(
            &self,
            table: TableId,
            keys: &[&'a [u8]],
        ) -> Result<Vec<Option<Vec<u8>>>, StorageError>;
        fn scan<'a>(
            &self,
            table: TableId,
            range: KeyRange<'a>,
            page: Page,
        ) -> Result<Rows, StorageError>;
    }
}

mock! {
    /// A mocked writer.
    #[derive(Debug)]
    pub Writer {}

    impl Snapshot for Writer {
        fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError>;
        fn get_many<'a>(
            &self,
            table: TableId,
            keys: &[&'a [u8]],
        ) -> Result<Vec<Option<Vec<u8>>>, StorageError>;
        fn scan<'a>(
            &self,
            table: TableId,
            range: KeyRange<'a>,
            page: Page,
        ) -> Result<Rows, StorageError>;
    }

    impl Writer for Writer {
        fn commit(self: Box<Self>, batch: &WriteBatch) -> Result<(), StorageError>;
    }
}
