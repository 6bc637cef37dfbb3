//! Receiving into one group while many others lie idle, against the same without them.

use xmtp_core::limits::MAX_ADMISSION_ROWS;

use crate::group::AgedGroup;
use crate::report::{Failure, Name, Report};

/// Groups that lie idle.
const IDLE_GROUPS: usize = 10_000;
/// Members of the group that is received into.
const MEMBERS: usize = 2;

/// Measures both.
pub(crate) fn measure(report: &mut Report) -> Result<(), Failure> {
    let (folder, other) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let mut among_many = AgedGroup::make(folder.path(), MEMBERS)?;
    among_many.receiver.add_idle_groups(IDLE_GROUPS)?;
    let mut alone = AgedGroup::make(other.path(), MEMBERS)?;
    let name = Name {
        measure: "idle_groups",
        label: Some(("groups", IDLE_GROUPS.into())),
        unit: "msg/s",
    };
    let count = report.rounds() * MAX_ADMISSION_ROWS;
    report.comparison(&name, |run| {
        let (ours, limit) = (among_many.messages(count)?, alone.messages(count)?);
        let slices = ours.chunks(MAX_ADMISSION_ROWS);
        for (ours, limit) in slices.zip(limit.chunks(MAX_ADMISSION_ROWS)) {
            run.ours(|| among_many.receiver.receive(ours))?;
            run.limit(|| alone.receiver.receive(limit))?;
        }
        Ok(count)
    })?;
    Ok(())
}
