package driver

import (
	"context"
	"fmt"

	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
)

// watchTables makes the database note what the tables show only in between: a cursor that goes back, although no operator has
// moved it, and an event of a queue topic that has a second end, or an end while it is in the queue. A note is part of the
// transaction that it is about.
const watchTables = `
	CREATE TABLE notes (kind text NOT NULL, event uuid, text text NOT NULL);
	CREATE FUNCTION note_cursor() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO public.notes VALUES ('` + check.Back + `', NULL, format('the cursor of listener %s, shard %s, went from %s, %s, %s to %s, %s, %s',
			NEW.listener, NEW.shard, OLD.lo, OLD.high_seq, OLD.last_seq, NEW.lo, NEW.high_seq, NEW.last_seq));
		RETURN NULL;
	END $$;
	CREATE TRIGGER note_cursor AFTER UPDATE ON outbox.listeners FOR EACH ROW
		WHEN (current_setting('application_name') <> '` + operatorName + `' AND (NEW.high_seq < OLD.high_seq
			OR pg_snapshot_xmin(NEW.lo) < pg_snapshot_xmin(OLD.lo) OR pg_snapshot_xmax(NEW.lo) < pg_snapshot_xmax(OLD.lo)
			OR NEW.in_batch AND OLD.in_batch AND NEW.hi::text = OLD.hi::text AND NEW.last_seq < OLD.last_seq))
		EXECUTE FUNCTION note_cursor();
	CREATE FUNCTION note_end() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO public.notes SELECT '` + check.Again + `', NEW.id, format('is in table %s and gets a row in %s', t.name, TG_TABLE_NAME)
			FROM (
				SELECT 'queue' AS name FROM outbox.queue WHERE id = NEW.id
				UNION ALL SELECT 'delivered' FROM outbox.delivered WHERE id = NEW.id
				UNION ALL SELECT 'dead_letters' FROM outbox.dead_letters WHERE id = NEW.id AND listener IS NULL
			) AS t WHERE t.name <> TG_TABLE_NAME;
		RETURN NULL;
	END $$;
	CREATE TRIGGER note_end AFTER INSERT ON outbox.delivered FOR EACH ROW EXECUTE FUNCTION note_end();
	CREATE TRIGGER note_end AFTER INSERT ON outbox.dead_letters FOR EACH ROW WHEN (NEW.listener IS NULL) EXECUTE FUNCTION note_end();`

// operatorName is the application name of the driver, which does what operators do.
const operatorName = "driver"

// notes reads what the database has noted.
func (d *driver) notes(ctx context.Context) (all []check.Violation, err error) {
	var v check.Violation
	const read = "SELECT kind, coalesce(event, '00000000-0000-0000-0000-000000000000'), text FROM notes"
	if err := each(ctx, d.root, read, []any{&v.Kind, (*[16]byte)(&v.Event), &v.Text}, func() { all = append(all, v) }); err != nil {
		return nil, fmt.Errorf("read notes: %w", err)
	}
	return all, nil
}
