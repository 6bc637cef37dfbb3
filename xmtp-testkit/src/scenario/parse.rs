//! Reading a scenario.

use std::fmt;

/// A scenario: who takes part, and what happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// The people, in the order of their databases.
    pub people: Vec<String>,
    /// Further devices: each is one of the people, with the account of another.
    pub devices: Vec<(String, String)>,
    /// The steps with their line numbers.
    pub steps: Vec<(usize, Step)>,
}

/// One step. The first name is who does it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Step {
    Creates {
        who: String,
        group: String,
    },
    Adds {
        who: String,
        whom: String,
        group: String,
    },
    Removes {
        who: String,
        whom: String,
        group: String,
    },
    Renames {
        who: String,
        group: String,
        name: String,
    },
    Sends {
        who: String,
        group: String,
        text: String,
    },
    Syncs {
        who: String,
    },
    Consumes {
        who: String,
        count: usize,
    },
    Restarts {
        who: String,
    },
    Has {
        who: String,
        group: String,
        texts: Vec<String>,
    },
    Membership {
        who: String,
        group: String,
        is_in: bool,
    },
    Agrees {
        who: String,
        whom: String,
        group: String,
    },
    Names {
        who: String,
        group: String,
        name: String,
    },
    Forges {
        who: String,
        posts: bool,
        what: Vec<String>,
        label: String,
    },
    Posts {
        who: String,
        label: String,
    },
    CannotPost {
        who: String,
        label: String,
    },
    Founds {
        who: String,
        form: String,
        group: String,
        whom: Vec<String>,
    },
    Sees {
        who: String,
        kept: String,
        posted: String,
    },
    SeesBrokenInbox {
        who: String,
        whom: String,
    },
    Revokes {
        who: String,
        whom: String,
    },
    LosesProposals {
        who: String,
        group: String,
    },
    SyncsInPart {
        who: String,
    },
    Hurries {
        who: String,
    },
    RestartsLater {
        who: String,
        days: u32,
    },
    Verdict {
        who: String,
        label: String,
        told: Told,
    },
}

/// What became of an envelope at somebody's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is handled, and not rejected.
    Applied,
    /// It is rejected for a recorded reason.
    Rejected(String),
    /// It is at the head of its topic and blocked, or it is a Welcome and blocked, for a reason.
    Blocked(String),
    /// It is at the head of its topic, or a Welcome, and waits for something.
    Waits,
    /// It is received and not handled, whatever the reason.
    Held,
    /// It is a Welcome that led to a group.
    Joined,
    /// F is there.
    Received,
    /// P is there.
    Processed,
}

/// A line that is no step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The line's number, from 1.
    pub line: usize,
    /// The line.
    pub text: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} is no step: {:?}", self.line, self.text)
    }
}

impl std::error::Error for ParseError {}

/// Reads a scenario.
///
/// # Errors
/// The first line that is no step, or names somebody who does not take part.
pub fn parse(text: &str) -> Result<Scenario, ParseError> {
    let mut scenario = Scenario {
        people: Vec::new(),
        devices: Vec::new(),
        steps: Vec::new(),
    };
    for (index, line) in text.lines().enumerate() {
        let plain = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = plain.split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        let fault = ParseError {
            line: index + 1,
            text: plain.trim().to_owned(),
        };
        if let ["people", people @ ..] = words.as_slice() {
            scenario
                .people
                .extend(people.iter().map(ToString::to_string));
            continue;
        }
        if let ["device", name, "of", owner] = words.as_slice() {
            if !scenario.people.iter().any(|known| known == owner) {
                return Err(fault);
            }
            scenario.people.push((*name).to_owned());
            let device = ((*name).to_owned(), (*owner).to_owned());
            scenario.devices.push(device);
            continue;
        }
        let step = step(&words).ok_or_else(|| fault.clone())?;
        let known = |name: &String| scenario.people.contains(name);
        if !step.names().into_iter().all(known) {
            return Err(fault);
        }
        scenario.steps.push((index + 1, step));
    }
    Ok(scenario)
}

fn step(words: &[&str]) -> Option<Step> {
    let own = |word: &&str| (*word).to_owned();
    Some(match words {
        [who, "creates", group] => Step::Creates {
            who: own(who),
            group: own(group),
        },
        [who, "adds", whom, "to", group] => Step::Adds {
            who: own(who),
            whom: own(whom),
            group: own(group),
        },
        [who, "removes", whom, "from", group] => Step::Removes {
            who: own(who),
            whom: own(whom),
            group: own(group),
        },
        [who, "renames", group, "to", name] => Step::Renames {
            who: own(who),
            group: own(group),
            name: own(name),
        },
        [who, "sends", group, text] => Step::Sends {
            who: own(who),
            group: own(group),
            text: own(text),
        },
        [who, "syncs"] => Step::Syncs { who: own(who) },
        [who, "consumes", count] => Step::Consumes {
            who: own(who),
            count: count.parse().ok()?,
        },
        [who, "restarts"] => Step::Restarts { who: own(who) },
        [_, "has", "received" | "processed", "to", _] => return rogue(words),
        [who, "has", group, texts @ ..] => Step::Has {
            who: own(who),
            group: own(group),
            texts: texts.iter().map(own).collect(),
        },
        [who, "is", place @ ("in" | "out"), rest @ ..] => {
            let group = match (*place, rest) {
                ("in", [group]) | ("out", ["of", group]) => own(group),
                _ => return None,
            };
            Step::Membership {
                who: own(who),
                group,
                is_in: *place == "in",
            }
        }
        [who, "agrees", "with", whom, "on", group] => Step::Agrees {
            who: own(who),
            whom: own(whom),
            group: own(group),
        },
        [who, "names", group, name] => Step::Names {
            who: own(who),
            group: own(group),
            name: own(name),
        },
        _ => return rogue(words),
    })
}

/// Reads what only rogues do, and what becomes of it.
fn rogue(words: &[&str]) -> Option<Step> {
    let own = |word: &&str| (*word).to_owned();
    if let [who, "cannot", "post", label] = words {
        return Some(Step::CannotPost {
            who: own(who),
            label: own(label),
        });
    }
    if let [who, "posts", label] = words {
        return Some(Step::Posts {
            who: own(who),
            label: own(label),
        });
    }
    if let [who, verb @ ("posts" | "keeps"), what @ .., "as", label] = words {
        return Some(Step::Forges {
            who: own(who),
            posts: *verb == "posts",
            what: what.iter().map(own).collect(),
            label: own(label),
        });
    }
    if let Some((who, label, told)) = verdict(words) {
        return Some(Step::Verdict { who, label, told });
    }
    Some(match words {
        [who, "founds", form, group, "with", whom @ ..] => Step::Founds {
            who: own(who),
            form: own(form),
            group: own(group),
            whom: whom.iter().map(own).collect(),
        },
        [who, "sees", "a", "broken", "inbox", "of", whom] => Step::SeesBrokenInbox {
            who: own(who),
            whom: own(whom),
        },
        [who, "sees", kept, "for", posted] => Step::Sees {
            who: own(who),
            kept: own(kept),
            posted: own(posted),
        },
        [who, "revokes", whom] => Step::Revokes {
            who: own(who),
            whom: own(whom),
        },
        [who, "loses", "the", "proposals", "of", group] => Step::LosesProposals {
            who: own(who),
            group: own(group),
        },
        [who, "syncs", "in", "part"] => Step::SyncsInPart { who: own(who) },
        [who, "hurries"] => Step::Hurries { who: own(who) },
        [who, "restarts", days, "days", "later"] => Step::RestartsLater {
            who: own(who),
            days: days.parse().ok()?,
        },
        _ => return None,
    })
}

/// Reads who has which verdict on what.
fn verdict(words: &[&str]) -> Option<(String, String, Told)> {
    let (who, label, told) = match words {
        [who, "applies", label] => (who, label, Told::Applied),
        [who, "rejects", label, "as", code] => (who, label, Told::Rejected((*code).to_owned())),
        [who, "is", "blocked", "at", label, "by", code] => {
            (who, label, Told::Blocked((*code).to_owned()))
        }
        [who, "waits", "at", label] => (who, label, Told::Waits),
        [who, "holds", label] => (who, label, Told::Held),
        [who, "joins", "by", label] => (who, label, Told::Joined),
        [who, "has", "received", "to", label] => (who, label, Told::Received),
        [who, "has", "processed", "to", label] => (who, label, Told::Processed),
        _ => return None,
    };
    Some(((*who).to_owned(), (*label).to_owned(), told))
}

impl Step {
    /// Answers everybody whom the step names.
    fn names(&self) -> Vec<&String> {
        match self {
            Self::Creates { who, .. }
            | Self::Renames { who, .. }
            | Self::Sends { who, .. }
            | Self::Syncs { who }
            | Self::Consumes { who, .. }
            | Self::Restarts { who }
            | Self::Has { who, .. }
            | Self::Membership { who, .. }
            | Self::Names { who, .. }
            | Self::Forges { who, .. }
            | Self::Posts { who, .. }
            | Self::CannotPost { who, .. }
            | Self::Sees { who, .. }
            | Self::LosesProposals { who, .. }
            | Self::SyncsInPart { who }
            | Self::Hurries { who }
            | Self::RestartsLater { who, .. }
            | Self::Verdict { who, .. } => vec![who],
            Self::Adds { who, whom, .. }
            | Self::Removes { who, whom, .. }
            | Self::SeesBrokenInbox { who, whom }
            | Self::Revokes { who, whom }
            | Self::Agrees { who, whom, .. } => vec![who, whom],
            Self::Founds { who, whom, .. } => std::iter::once(who).chain(whom).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_reads_line_by_line() {
        let text = "people alice bo\n# nothing\nalice creates ops  # STR-001\nbo is out of ops\n";
        let scenario = parse(text).expect("a scenario");
        assert_eq!(scenario.people, ["alice", "bo"]);
        assert_eq!(scenario.steps.len(), 2);
        assert_eq!(scenario.steps[1].0, 4);
    }

    #[test]
    fn a_line_that_is_no_step_is_named() {
        for (text, line) in [("people a\na dances", 2), ("people a\nb syncs", 2)] {
            assert_eq!(parse(text).expect_err("a fault").line, line);
        }
    }
}
