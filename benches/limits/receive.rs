//! Receipt: wire bytes until the delivery number is committed, against openmls reading the same
//! bytes for an equal member.

use openmls::group::MlsGroup;
use openmls::prelude::{MlsMessageIn, ProcessedMessageContent};
use tls_codec::DeserializeBytes;
use xmtp_core::limits::MAX_ADMISSION_ROWS;

use crate::group::{AgedGroup, Message};
use crate::nothing::NothingProvider;
use crate::report::{Failure, Name, Report};

/// Measures a group of so many members.
pub(crate) fn measure(report: &mut Report, members: usize) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let mut group = AgedGroup::make(folder.path(), members)?;
    let mut equal = Equal {
        group: group.receiver.equal()?,
        provider: NothingProvider::default(),
    };
    let name = Name {
        measure: "receive",
        label: Some(("members", members.into())),
        unit: "msg/s",
    };
    let count = report.rounds() * MAX_ADMISSION_ROWS;
    report.figure(&name, |run| {
        let messages = group.messages(count)?;
        let before = group.receiver.delivery_numbers()?;
        for batch in messages.chunks(MAX_ADMISSION_ROWS) {
            run.ours(|| group.receiver.receive(batch))?;
            run.limit(|| equal.read(batch))?;
        }
        let given = group.receiver.delivery_numbers()? - before;
        if given != count as u64 {
            return Err("not every message has a delivery number".into());
        }
        Ok(count)
    })?;
    let split = group.receiver.split_batches;
    if split > 0 {
        eprintln!(
            "receive at {members} members: {split} batches took a second turn, as on a machine \
             that is slow or busy; what is left of a batch is then written and read again"
        );
    }
    Ok(())
}

/// A member whose state is in memory alone.
struct Equal {
    group: MlsGroup,
    provider: NothingProvider,
}

impl Equal {
    fn read(&mut self, batch: &[Message]) -> Result<(), Failure> {
        for message in batch {
            let message = MlsMessageIn::tls_deserialize_exact_bytes(&message.mls)?;
            let message = message.try_into_protocol_message()?;
            let processed = self.group.process_message(&self.provider, message)?;
            match processed.into_content() {
                ProcessedMessageContent::ApplicationMessage(message) => {
                    std::hint::black_box(message.into_bytes());
                }
                _ => return Err("a message is none".into()),
            }
        }
        Ok(())
    }
}
