-- testing.events is each event of a queue topic with its state, as one row that tests can read and write. A write changes
-- the rows of the tables; columns that it does not change are left alone.
CREATE SCHEMA testing;

CREATE VIEW testing.events AS
SELECT
    e.id, e.namespace, e.topic, e.version, e.tenant_id, e.dedupe_key, e.partition_key, e.entity_type, e.entity_id,
    e.entity_version, e.headers, e.payload, e.created_at,
    s.status, s.attempts, coalesce(s.max_attempts, 25) AS max_attempts, s.claim_no,
    coalesce(s.next_attempt_at, e.created_at) AS next_attempt_at, s.locked_by, s.locked_until, s.last_error, s.finalized_at,
    q.lane, coalesce(q.updated_at, s.finalized_at) AS updated_at
FROM outbox.events AS e
JOIN outbox.event_status AS s ON s.id = e.id
LEFT JOIN outbox.queue AS q ON q.id = e.id;

CREATE FUNCTION testing.write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM outbox.queue WHERE id = OLD.id;
        DELETE FROM outbox.delivered WHERE id = OLD.id;
        DELETE FROM outbox.dead_letters WHERE id = OLD.id AND listener IS NULL;
        DELETE FROM outbox.events WHERE id = OLD.id;
        RETURN OLD;
    END IF;
    IF TG_OP = 'INSERT' THEN
        NEW.id := coalesce(NEW.id, gen_random_uuid());
        NEW.version := coalesce(NEW.version, 1);
        NEW.created_at := coalesce(NEW.created_at, statement_timestamp());
        NEW.status := coalesce(NEW.status, 'pending');
        NEW.attempts := coalesce(NEW.attempts, 0);
        NEW.max_attempts := coalesce(NEW.max_attempts, 25);
        NEW.claim_no := coalesce(NEW.claim_no, 0);
        NEW.next_attempt_at := coalesce(NEW.next_attempt_at, statement_timestamp());
        NEW.updated_at := coalesce(NEW.updated_at, statement_timestamp());
        NEW.lane := coalesce(NEW.lane, outbox.lane(NEW.topic));
        INSERT INTO outbox.events VALUES (NEW.id, NEW.namespace, NEW.topic, NEW.version, NEW.tenant_id, NEW.dedupe_key, NEW.partition_key,
            NEW.entity_type, NEW.entity_id, NEW.entity_version, NEW.headers, NEW.payload, NEW.created_at);
    ELSE
        UPDATE outbox.events SET id = NEW.id, namespace = NEW.namespace, topic = NEW.topic, version = NEW.version, tenant_id = NEW.tenant_id,
            dedupe_key = NEW.dedupe_key, partition_key = NEW.partition_key, entity_type = NEW.entity_type, entity_id = NEW.entity_id,
            entity_version = NEW.entity_version, headers = NEW.headers, payload = NEW.payload, created_at = NEW.created_at
        WHERE id = OLD.id
          AND (id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id, entity_version, headers, payload, created_at)
            IS DISTINCT FROM (NEW.id, NEW.namespace, NEW.topic, NEW.version, NEW.tenant_id, NEW.dedupe_key, NEW.partition_key, NEW.entity_type,
                NEW.entity_id, NEW.entity_version, NEW.headers, NEW.payload, NEW.created_at);
        IF NEW.status IN ('pending', 'processing') AND OLD.status IN ('pending', 'processing') THEN
            UPDATE outbox.queue AS q SET id = NEW.id, namespace = NEW.namespace, topic = NEW.topic, version = NEW.version, tenant_id = NEW.tenant_id,
                attempts = CASE WHEN NEW.attempts IS DISTINCT FROM OLD.attempts THEN NEW.attempts ELSE q.attempts END,
                max_attempts = CASE WHEN NEW.max_attempts IS DISTINCT FROM OLD.max_attempts THEN NEW.max_attempts ELSE q.max_attempts END,
                claim_no = CASE WHEN NEW.claim_no IS DISTINCT FROM OLD.claim_no THEN NEW.claim_no ELSE q.claim_no END,
                next_attempt_at = CASE WHEN NEW.next_attempt_at IS DISTINCT FROM OLD.next_attempt_at THEN NEW.next_attempt_at ELSE q.next_attempt_at END,
                locked_by = CASE WHEN NEW.locked_by IS DISTINCT FROM OLD.locked_by THEN NEW.locked_by ELSE q.locked_by END,
                locked_until = CASE WHEN NEW.locked_until IS DISTINCT FROM OLD.locked_until THEN NEW.locked_until ELSE q.locked_until END,
                updated_at = CASE WHEN NEW.updated_at IS DISTINCT FROM OLD.updated_at THEN NEW.updated_at ELSE q.updated_at END,
                failures = CASE WHEN NEW.last_error IS DISTINCT FROM OLD.last_error THEN jsonb_build_array(jsonb_build_object('error', NEW.last_error)) ELSE q.failures END
            WHERE q.id = OLD.id;
            IF NOT FOUND THEN
                RETURN NULL;
            END IF;
            IF (NEW.status = 'processing') <> (NEW.locked_until IS NOT NULL) THEN
                RAISE 'status % with locked_until %', NEW.status, NEW.locked_until;
            END IF;
            RETURN NEW;
        END IF;
        DELETE FROM outbox.queue WHERE id = OLD.id;
        DELETE FROM outbox.delivered WHERE id = OLD.id;
        DELETE FROM outbox.dead_letters WHERE id = OLD.id AND listener IS NULL;
    END IF;
    IF NEW.status = 'delivered' THEN
        INSERT INTO outbox.delivered (id, finalized_at, claim_no, attempts, namespace, topic, locked_by)
        VALUES (NEW.id, coalesce(NEW.finalized_at, statement_timestamp()), NEW.claim_no, NEW.attempts, NEW.namespace, NEW.topic, NEW.locked_by);
    ELSIF NEW.status = 'dead' THEN
        INSERT INTO outbox.dead_letters (id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id, entity_version,
            headers, payload, created_at, attempts, max_attempts, claim_no, locked_by, error, died_at)
        VALUES (NEW.id, NEW.namespace, NEW.topic, NEW.version, NEW.tenant_id, NEW.dedupe_key, NEW.partition_key, NEW.entity_type, NEW.entity_id,
            NEW.entity_version, NEW.headers, NEW.payload, NEW.created_at, NEW.attempts, NEW.max_attempts, NEW.claim_no, NEW.locked_by,
            coalesce(NEW.last_error, 'by hand'), coalesce(NEW.finalized_at, statement_timestamp()));
    ELSE
        INSERT INTO outbox.queue (id, next_attempt_at, claim_no, attempts, max_attempts, version, lane, namespace, topic, tenant_id, locked_by, locked_until,
            updated_at, failures)
        VALUES (NEW.id, NEW.next_attempt_at, NEW.claim_no, NEW.attempts, NEW.max_attempts, NEW.version, coalesce(NEW.lane, outbox.lane(NEW.topic)), NEW.namespace, NEW.topic,
            NEW.tenant_id, NEW.locked_by, NEW.locked_until, coalesce(NEW.updated_at, statement_timestamp()),
            CASE WHEN NEW.last_error IS NOT NULL THEN jsonb_build_array(jsonb_build_object('error', NEW.last_error)) END);
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER write INSTEAD OF INSERT OR UPDATE OR DELETE ON testing.events FOR EACH ROW EXECUTE FUNCTION testing.write();
