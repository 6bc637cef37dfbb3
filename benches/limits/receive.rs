//! Receipt: wire bytes until the delivery number is committed, against openmls reading the same
//! bytes for an equal member.

use xmtp_core::limits::MAX_ADMISSION_ROWS;

use crate::bare::Bare;
use crate::group::AgedGroup;
use crate::report::{Failure, Name, Report};

/// Measures a group of so many members.
pub(crate) fn measure(report: &mut Report, members: usize) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let mut group = AgedGroup::make(folder.path(), members)?;
    let mut equal = Bare::equal(group.receiver.equal()?);
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
            group.receiver.counted.take();
            run.ours(|| group.receiver.receive(batch))?;
            run.stored(group.receiver.counted.take());
            run.limit(|| {
                batch
                    .iter()
                    .try_for_each(|message| equal.read(&message.mls))
            })?;
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
            "receive at {members} members: {split} batches took a second transaction, as on a \
             machine that is slow or busy; the group is then loaded and its secrets written twice"
        );
    }
    Ok(())
}
