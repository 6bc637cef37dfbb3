//! Whether the parts of a client can keep what the requirements promise together (EXT-004).

use xmtp_core::storage::{Capability, OpenError, Processes};
use xmtp_core::transport::TransportCapability;
use xmtp_proto::limits::BACKEND_DEFAULT_MAX_ENVELOPE_BYTES;

/// Bytes that a stored envelope has at most besides the envelope.
const ROW_OVERHEAD_BYTES: usize = 1024;

/// Refuses a composition that would break a requirement, and names it.
///
/// # Errors
/// [`OpenError::Unfit`] with the requirement's id.
pub(super) fn check(
    storage: &Capability,
    transport: &TransportCapability,
    is_shared: bool,
) -> Result<(), OpenError> {
    let unfit = |requirement, needed| {
        Err(OpenError::Unfit {
            requirement,
            needed,
        })
    };
    if is_shared && storage.processes == Processes::One {
        return unfit(
            "STR-070",
            "a storage engine that several processes can share",
        );
    }
    if storage.max_value_bytes < BACKEND_DEFAULT_MAX_ENVELOPE_BYTES as usize + ROW_OVERHEAD_BYTES {
        return unfit(
            "STR-066",
            "a storage engine that holds the largest legal envelope",
        );
    }
    if !transport.bidirectional {
        return unfit("STR-001", "a transport with bidirectional subscriptions");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use xmtp_core::storage::Encryption;

    fn storage() -> Capability {
        Capability {
            name: "sample",
            processes: Processes::One,
            encryption: Encryption::Values,
            erases_deleted: false,
            max_value_bytes: 64 * 1024 * 1024,
        }
    }

    const WIRE: TransportCapability = TransportCapability {
        name: "sample",
        bidirectional: true,
        credential_source: false,
    };

    /// Each refusal names the requirement that would be broken.
    /// covers: EXT-004
    #[test]
    fn a_composition_that_breaks_a_requirement_is_refused_by_its_name() {
        assert_eq!(check(&storage(), &WIRE, false), Ok(()));
        let small = Capability {
            max_value_bytes: 1024,
            ..storage()
        };
        let one_way = TransportCapability {
            bidirectional: false,
            ..WIRE
        };
        let named = |result: Result<(), OpenError>| match result {
            Err(OpenError::Unfit { requirement, .. }) => requirement,
            other => panic!("not refused: {other:?}"),
        };
        assert_eq!(named(check(&storage(), &WIRE, true)), "STR-070");
        assert_eq!(named(check(&small, &WIRE, false)), "STR-066");
        assert_eq!(named(check(&storage(), &one_way, false)), "STR-001");
    }
}
