-- Raises the sequence to a multiple of 2^32 that is at least 2^32 above every id that is known to
-- have been given: ids given after a backup was made are not known. Who runs it holds the barrier.
SELECT setval('envelope_seq', ((greatest(
    (SELECT last_value FROM envelope_seq),
    (SELECT coalesce(max(sequence_id), 0) FROM envelope),
    (SELECT closed_sequence_id FROM allocation_boundary)
) >> 32) + 2) << 32)
