//! The state of everything at one moment, and what a snapshot of the database shows.

/// A sequence id; zero is none.
pub(crate) type Id = u8;

/// A topic, by its position.
pub(crate) type Topic = usize;

/// What a publish carries, by number.
pub(crate) type Bytes = u8;

/// Topics in the model.
pub(crate) const TOPICS: usize = 2;

/// Notices that the mailbox of the session holds.
pub(crate) const MAILBOX: usize = 1;

/// A set of ids, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ids(u16);

impl Ids {
    pub(crate) fn insert(&mut self, id: Id) {
        self.0 |= 1 << id;
    }

    pub(crate) fn remove(&mut self, id: Id) {
        self.0 &= !(1 << id);
    }

    pub(crate) fn contains(self, id: Id) -> bool {
        self.0 & (1 << id) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Id> {
        (0..16).filter(move |id| self.contains(*id))
    }

    /// Returns the greatest id, or zero.
    pub(crate) fn greatest(self) -> Id {
        self.iter().last().unwrap_or(0)
    }
}

/// One entry of the log of commits. Its order is the order in which everybody sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Commit {
    Row(Row),
    Boundary(Id),
    Pruned(Id),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) id: Id,
    pub(crate) topic: Topic,
    pub(crate) bytes: Bytes,
}

/// What a reader sees: the log up to some commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot<'a>(pub(crate) &'a [Commit]);

impl<'a> Snapshot<'a> {
    /// Returns every row that was stored, pruned ones too, in the order of their commits.
    pub(crate) fn stored(self) -> impl Iterator<Item = Row> + 'a {
        self.0.iter().filter_map(|commit| match commit {
            Commit::Row(row) => Some(*row),
            Commit::Boundary(_) | Commit::Pruned(_) => None,
        })
    }

    /// Returns the rows that can be read, by id.
    pub(crate) fn rows(self) -> Vec<Row> {
        let mut rows: Vec<Row> = self
            .stored()
            .filter(|row| !self.is_pruned(row.id))
            .collect();
        rows.sort_by_key(|row| row.id);
        rows
    }

    pub(crate) fn is_pruned(self, id: Id) -> bool {
        self.0.contains(&Commit::Pruned(id))
    }

    /// Returns the head of a topic, which outlives its row.
    pub(crate) fn head(self, topic: Topic) -> Id {
        let of_topic = self.stored().filter(|row| row.topic == topic);
        of_topic.map(|row| row.id).max().unwrap_or(0)
    }

    pub(crate) fn boundary(self) -> Id {
        let written = self.0.iter().rev().find_map(|commit| match commit {
            Commit::Boundary(id) => Some(*id),
            Commit::Row(_) | Commit::Pruned(_) => None,
        });
        written.unwrap_or(0)
    }

    pub(crate) fn greatest(self) -> Id {
        self.stored().map(|row| row.id).max().unwrap_or(0)
    }
}

/// Everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The last id that the sequence gave.
    pub(crate) sequence: Id,
    pub(crate) log: Vec<Commit>,
    /// How much of the log the replica has.
    pub(crate) replica: usize,
    /// How much of it another replica has, where there is one.
    pub(crate) other_replica: usize,
    pub(crate) writers: [Writer; 2],
    pub(crate) boundary: Boundary,
    pub(crate) tailer: Tailer,
    pub(crate) session: Session,
    /// Promises that were broken when something was sent.
    pub(crate) broken: Broken,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Writer {
    /// Which publish of its plan is next, or under way.
    pub(crate) next: usize,
    pub(crate) step: Step,
}

/// How far a publish is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    #[default]
    Idle,
    /// It did too early what belongs under the topic lock: took a snapshot, or an id.
    Early { snapshot: usize, id: Id, seen: Id },
    /// It holds its topic and the shared lock, and has an id.
    Allocated {
        id: Id,
        /// The greatest id that was visible when it began.
        seen: Id,
    },
}

/// The task that closes the boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Boundary {
    #[default]
    Idle,
    /// It read the sequence and holds no lock yet.
    Read(Id),
    /// It holds the exclusive lock.
    Held(Option<Id>),
    /// It has let go of the lock and has yet to read.
    Released,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tailer {
    pub(crate) cursor: Id,
    pub(crate) gaps: Ids,
    /// Gaps that were given up.
    pub(crate) retired: Ids,
    /// What was read and is not dispatched.
    pub(crate) batch: Option<Batch>,
    /// The first half of a poll that is torn in two.
    pub(crate) half: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Batch {
    /// Late rows, which fill gaps.
    pub(crate) probed: Ids,
    /// The next row.
    pub(crate) forward: Id,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Session {
    pub(crate) is_closed: bool,
    pub(crate) registrations: [Option<Registration>; TOPICS],
    /// How many registrations there were.
    pub(crate) generation: u8,
    /// How many updates were begun.
    pub(crate) begun: usize,
    /// How many were acknowledged.
    pub(crate) applied: usize,
    pub(crate) update: Option<Stage>,
    pub(crate) mailbox: Vec<Notice>,
    pub(crate) fetch: Option<Fetch>,
    /// The last id that the client received of each topic, over all registrations.
    pub(crate) received: [Id; TOPICS],
}

/// How far the present update is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// The registry is changed; heads are not read.
    Registered,
    /// Heads are read; the acknowledgement is not queued.
    HeadsRead([Id; TOPICS]),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Registration {
    pub(crate) generation: u8,
    /// The position that the client named.
    pub(crate) cursor: Id,
    /// The head, once acknowledged.
    pub(crate) target: Option<Id>,
    /// What the client was told the target is.
    pub(crate) told: Option<Id>,
    pub(crate) floor: Id,
    pub(crate) needed: Id,
    pub(crate) is_live: bool,
    /// The greatest id that did not fit the mailbox.
    pub(crate) lagged: Id,
    pub(crate) delivered: Ids,
}

/// Tells a session of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Notice {
    pub(crate) topic: Topic,
    pub(crate) generation: u8,
    pub(crate) id: Id,
}

/// A fetch turn of one topic, read and not yet queued: at most one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fetch {
    pub(crate) topic: Topic,
    pub(crate) generation: u8,
    pub(crate) row: Id,
    pub(crate) through: Id,
    /// Whether the scan ran to its end.
    pub(crate) is_complete: bool,
}

/// Promises about what is sent, each seen at the moment of sending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Broken {
    /// An id was not above all before it, or not above the cursor.
    pub(crate) order: bool,
    /// Something was sent of a registration that was not acknowledged, or no longer there.
    pub(crate) stray: bool,
    /// An acknowledgement was not that of the next update.
    pub(crate) acknowledgement: bool,
}

impl State {
    pub(crate) fn primary(&self) -> Snapshot<'_> {
        Snapshot(&self.log)
    }

    pub(crate) fn seen_by_replica(&self) -> Snapshot<'_> {
        Snapshot(&self.log[..self.replica])
    }
}
