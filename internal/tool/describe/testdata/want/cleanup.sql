-- Deletes the events that Debezium has published from the queue, because no dispatcher delivers them. Run it every hour.
-- It does not look at Debezium: an event that is deleted here is still in the WAL, from which Debezium reads it. Until then
-- the dedupe key of an event is taken.

WITH published AS (
    DELETE FROM outbox.queue AS q
    USING outbox.events AS e
    WHERE q.namespace = 'users' AND q.topic IN ('bill_due')
      AND e.id = q.id AND e.created_at < statement_timestamp() - interval '172800 seconds'
    RETURNING q.id
)
DELETE FROM outbox.events AS e USING published AS p WHERE e.id = p.id;
