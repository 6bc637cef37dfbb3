//! Commits, one at a time: wire bytes until the new epoch is committed, against openmls applying
//! the same bytes for another member.

use crate::group::AgedGroup;
use crate::report::{Failure, Name, Report};

/// Commits of one slice.
const COMMITS: usize = 4;

/// Measures a group of so many members.
pub(crate) fn measure(report: &mut Report, members: usize) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let (mut group, mut bare) = AgedGroup::make_with_bare(folder.path(), members)?;
    let name = Name {
        measure: "commit",
        label: Some(("members", members.into())),
        unit: "commits/s",
    };
    let rounds = report.rounds();
    report.figure(&name, |run| {
        for _ in 0..rounds * COMMITS {
            let commit = [group.commit()?];
            group.receiver.counted.take();
            run.ours(|| group.receiver.receive(&commit))?;
            run.stored(group.receiver.counted.take());
            run.limit(|| bare.follow(&commit[0].mls))?;
        }
        Ok(rounds * COMMITS)
    })
}
