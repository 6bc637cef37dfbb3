//! Splits units into requests: a pure planner (CFG-064, CFG-096).

use bytes::Bytes;
use xmtp_proto::limits::{BACKEND_DEFAULT_MAX_PUBLISH_TOPICS, BACKEND_DEFAULT_MAX_REQUEST_BYTES};

/// Bytes of tag and length that one envelope adds to a request, at most.
const FRAMING_BYTES: usize = 6;

/// Envelopes that stay together in one request, as encoded `ClientEnvelope`s: a commit with its
/// proposals, or one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The intent that the unit belongs to.
    pub intent: u64,
    /// The encoded envelopes, in order.
    pub envelopes: Vec<Bytes>,
}

impl Unit {
    /// Counts the bytes that the unit adds to a request.
    pub fn request_bytes(&self) -> usize {
        self.envelopes
            .iter()
            .map(|envelope| envelope.len() + FRAMING_BYTES)
            .sum()
    }
}

/// Bounds of one publish request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBounds {
    /// Most bytes.
    pub bytes: usize,
    /// Most topics; counted as envelopes, which is never too few.
    pub topics: usize,
}

impl Default for RequestBounds {
    fn default() -> Self {
        Self {
            bytes: BACKEND_DEFAULT_MAX_REQUEST_BYTES as usize,
            topics: BACKEND_DEFAULT_MAX_PUBLISH_TOPICS as usize,
        }
    }
}

/// Groups units into requests in order, each within the bounds; a unit over the bounds goes alone.
pub fn plan(units: Vec<Unit>, bounds: RequestBounds) -> Vec<Vec<Unit>> {
    let mut requests: Vec<Vec<Unit>> = Vec::new();
    let (mut bytes, mut topics) = (0, 0);
    for unit in units {
        let (more_bytes, more_topics) = (unit.request_bytes(), unit.envelopes.len());
        let fits = bytes + more_bytes <= bounds.bytes && topics + more_topics <= bounds.topics;
        match requests.last_mut() {
            Some(request) if fits => {
                request.push(unit);
                bytes += more_bytes;
                topics += more_topics;
            }
            _ => {
                requests.push(vec![unit]);
                (bytes, topics) = (more_bytes, more_topics);
            }
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every unit is in exactly one request, whole and in order, and requests keep their
        /// bounds unless one unit alone is over them.
        #[test]
        fn units_stay_whole_and_in_order(
            sizes in proptest::collection::vec(proptest::collection::vec(0usize..40, 1..4), 0..20),
        ) {
            let units: Vec<Unit> = sizes
                .iter()
                .enumerate()
                .map(|(index, sizes)| Unit {
                    intent: index as u64,
                    envelopes: sizes.iter().map(|size| vec![0; *size].into()).collect(),
                })
                .collect();
            let bounds = RequestBounds { bytes: 100, topics: 5 };
            let requests = plan(units.clone(), bounds);
            for request in &requests {
                let bytes: usize = request.iter().map(Unit::request_bytes).sum();
                let topics: usize = request.iter().map(|unit| unit.envelopes.len()).sum();
                let fits = bytes <= bounds.bytes && topics <= bounds.topics;
                prop_assert!(fits || request.len() == 1);
            }
            prop_assert_eq!(requests.concat(), units);
        }
    }
}
