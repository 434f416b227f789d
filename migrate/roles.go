package migrate

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/internal/postgres/pgname"
)

// Role is what a role of PostgreSQL is allowed to do with the tables of a schema.
type Role string

// The roles. A role of PostgreSQL may have several.
const (
	// Producer enqueues events. It cannot read payloads, and it cannot change or delete what is enqueued.
	Producer Role = "producer"
	// Dispatcher runs dispatchers, listeners and the inbox, and prunes. It cannot enqueue or change an event.
	Dispatcher Role = "dispatcher"
	// Operator is for package admin and the commands that use it.
	Operator Role = "operator"
	// Eraser forgets tenants and entities. Only it may remove from the audit what names somebody.
	Eraser Role = "eraser"
	// Reader reads everything, payloads too, and changes nothing.
	Reader Role = "reader"
	// Viewer reads everything but payloads, headers and the messages that consumers keep, and changes nothing. It sees the
	// texts of errors, and of headers causation_id and correlation_id.
	Viewer Role = "viewer"
)

// Roles returns all roles.
func Roles() []Role { return []Role{Producer, Dispatcher, Operator, Eraser, Reader, Viewer} }

// Grant is a set of privileges on one object.
type Grant struct {
	// Kind is TABLE (also for a view), SEQUENCE, FUNCTION or SCHEMA.
	Kind string
	// Object is its name within the schema, with the types of its parameters for a function. It is empty for the schema.
	Object string
	// Privileges are SELECT, INSERT, UPDATE, DELETE, USAGE or EXECUTE, each with a list of columns if it is only for
	// these: "SELECT (id, topic)".
	Privileges []string
	// Optional says that the object may be absent, and that only outboxgen doctor and outboxgen migrate need it.
	Optional bool
}

// On returns the object as SQL names it.
func (g Grant) On(schema string) string {
	if g.Kind == "SCHEMA" {
		return quote(schema)
	}
	return quote(schema) + "." + g.Object
}

// SQL returns the statement that gives the privileges to a role.
func (g Grant) SQL(schema, role string) string {
	return fmt.Sprintf("GRANT %s ON %s %s TO %s;", strings.Join(g.Privileges, ", "), g.Kind, g.On(schema), role)
}

const (
	enqueueFunction = "enqueue(text, text, jsonb, uuid, text, text, text, text, bigint, jsonb, integer, integer, " +
		"timestamptz, text, boolean)"
	laneFunction = "lane(text)"
	// enqueueLogFunction is for log topics. The others are parts of it and of enqueueFunction.
	enqueueLogFunction = "enqueue_log(text, text, jsonb, uuid, text, text, text, text, bigint, jsonb, integer, boolean)"
	claimTurnsFunction = "claim_turns(text, uuid, interval, integer, integer, text[], integer, text[], integer[], uuid[], " +
		"text[], integer[], text[], timestamptz[], uuid[], integer[], timestamptz[], uuid[], integer, integer[], text[], " +
		"integer, integer, integer, integer, uuid[], integer, integer, interval)"
	checkFunction   = "check_event(text, text, text, jsonb, uuid, text, text, text, text, bigint, jsonb, integer)"
	eventIDFunction = "event_id()"
	wakeFunction    = "wake(text)"
	bucketFunction  = "bucket(text, uuid)"
)

func table(name string, privileges ...string) Grant {
	return Grant{Kind: "TABLE", Object: name, Privileges: privileges}
}

func logSequence(privileges ...string) Grant {
	return Grant{Kind: "SEQUENCE", Object: "log_seq", Privileges: privileges}
}

func function(signature string) Grant {
	return Grant{Kind: "FUNCTION", Object: signature, Privileges: []string{"EXECUTE"}}
}

// appliedRecords is the table of applied migrations, which exists only if package migrate applied them.
func appliedRecords() Grant {
	return Grant{Kind: "TABLE", Object: "schema_migrations", Privileges: []string{"SELECT"}, Optional: true}
}

// Grants returns the least that role needs, and USAGE on the schema, which comes first. UPDATE on one column, an id
// that nothing updates, is for rows that are locked before they are deleted.
func Grants(role Role) []Grant {
	grants := []Grant{{Kind: "SCHEMA", Privileges: []string{"USAGE"}}}
	switch role {
	case Producer:
		// for ON CONFLICT, and for the id of the event that has the key
		const key = "SELECT (id, namespace, topic, dedupe_key)"
		return append(grants,
			table("events", "INSERT", key),
			table("queue", "INSERT"),
			table("log", "INSERT", key),
			logSequence("USAGE"),
			function(enqueueFunction), function(enqueueLogFunction), function(laneFunction), function(checkFunction),
			function(eventIDFunction),
			function(wakeFunction), function(bucketFunction))
	case Dispatcher:
		return append(grants,
			table("events", "SELECT", "UPDATE (id)", "DELETE"),
			table("queue", "SELECT", "UPDATE", "DELETE"),
			table("delivered", "SELECT", "INSERT", "UPDATE (id)", "DELETE"),
			table("dead_letters", "SELECT", "INSERT", "UPDATE (id)", "DELETE"),
			table("log", "SELECT", "DELETE"),
			logSequence("SELECT"),
			table("listeners", "SELECT", "INSERT", "UPDATE", "DELETE"),
			table("parked", "SELECT", "INSERT", "UPDATE", "DELETE"),
			table("listener_failures", "SELECT", "INSERT", "UPDATE", "DELETE"),
			table("listener_rates", "SELECT", "INSERT", "UPDATE"),
			table("processes", "SELECT", "INSERT", "UPDATE", "DELETE"),
			table("pauses", "SELECT"),
			table("limits", "SELECT", "INSERT", "UPDATE", "DELETE"),
			table("limits_in_force", "SELECT"),
			table("limit_usage", "SELECT", "INSERT", "UPDATE", "DELETE"),
			table("processed_events", "SELECT", "INSERT", "UPDATE (event_id)", "DELETE"),
			table("entity_versions", "SELECT", "INSERT", "UPDATE", "DELETE"),
			table("inbox_quarantined", "SELECT", "INSERT", "UPDATE (event_id)", "DELETE"),
			table("inbox_messages", "SELECT", "INSERT", "UPDATE", "DELETE"),
			function(claimTurnsFunction), function(laneFunction),
			Grant{Kind: "SEQUENCE", Object: "dead_letters_no_seq", Privileges: []string{"USAGE"}})
	case Operator:
		return append(grants,
			table("events", "SELECT", "INSERT", "UPDATE", "DELETE"),
			table("queue", "SELECT", "INSERT", "UPDATE", "DELETE"),
			table("delivered", "SELECT", "INSERT", "UPDATE (id)", "DELETE"),
			table("dead_letters", "SELECT", "INSERT", "UPDATE", "DELETE"),
			table("event_status", "SELECT"),
			table("event_links", "SELECT"),
			table("log", "SELECT", "UPDATE", "DELETE"),
			logSequence("SELECT", "UPDATE"),
			table("listeners", "SELECT", "INSERT", "UPDATE", "DELETE"),
			table("parked", "SELECT", "INSERT", "UPDATE", "DELETE"),
			table("listener_failures", "SELECT", "UPDATE (id)", "DELETE"),
			table("processes", "SELECT", "DELETE"),
			table("pauses", "SELECT", "INSERT", "UPDATE", "DELETE"),
			table("limits", "SELECT", "UPDATE"),
			table("limits_in_force", "SELECT"),
			table("limit_usage", "SELECT"),
			table("inbox_messages", "SELECT", "UPDATE", "DELETE"),
			table("processed_events", "SELECT (consumer_group, event_id, processed_at)"),
			table("entity_versions", "SELECT"),
			table("inbox_quarantined", "SELECT (consumer_group, event_id, tenant_id, payload)", "UPDATE (payload)"),
			// an act that takes several transactions counts, and says that it runs
			table("audit", "SELECT", "INSERT", "UPDATE (events, busy_until)"),
			function(laneFunction),
			appliedRecords())
	case Eraser:
		return append(grants,
			table("events", "SELECT", "DELETE"),
			table("queue", "SELECT", "UPDATE (id)", "DELETE"),
			table("delivered", "SELECT", "UPDATE (id)", "DELETE"),
			table("dead_letters", "SELECT", "UPDATE (id)", "DELETE"),
			table("log", "SELECT", "DELETE"),
			logSequence("SELECT"),
			table("listeners", "SELECT", "UPDATE"),
			table("parked", "SELECT", "UPDATE", "DELETE"),
			table("listener_failures", "SELECT", "DELETE"),
			table("processes", "SELECT"),
			table("pauses", "SELECT", "DELETE"),
			table("limits", "SELECT"),
			table("limit_usage", "SELECT", "DELETE"),
			table("inbox_messages", "SELECT", "UPDATE", "DELETE"),
			table("processed_events", "SELECT", "DELETE"),
			table("inbox_quarantined", "SELECT", "DELETE"),
			table("entity_versions", "SELECT", "DELETE"),
			table("audit", "SELECT", "INSERT", "UPDATE (why, scope, events, busy_until)"))
	case Reader:
		for _, name := range []string{"events", "queue", "delivered", "dead_letters", "event_status", "event_links", "log",
			"listeners", "parked", "listener_failures", "listener_rates",
			"processed_events", "entity_versions", "inbox_quarantined", "inbox_messages", "processes", "pauses",
			"limits", "limits_in_force", "limit_usage", "turn_claim", "audit"} {
			grants = append(grants, table(name, "SELECT"))
		}
		return append(grants, logSequence("SELECT"), function(laneFunction), appliedRecords())
	case Viewer:
		for _, name := range []string{"queue", "delivered", "listeners", "listener_failures", "listener_rates", "processed_events",
			"entity_versions", "event_links", "processes", "pauses", "limits", "limits_in_force", "limit_usage", "audit"} {
			grants = append(grants, table(name, "SELECT"))
		}
		for _, name := range slices.Sorted(maps.Keys(withoutPayload)) {
			grants = append(grants, table(name, "SELECT ("+withoutPayload[name]+")"))
		}
		return append(grants, logSequence("SELECT"), function(laneFunction), appliedRecords())
	}
	return nil
}

// withoutPayload has for each table and view with payloads the columns that a viewer reads.
var withoutPayload = map[string]string{
	"events": "id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id, entity_version, created_at",
	"event_status": "id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id, entity_version, " +
		"created_at, status, attempts, max_attempts, claim_no, next_attempt_at, locked_by, locked_until, last_error, failures, finalized_at",
	"log": "seq, xid, id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id, entity_version, " +
		"bucket, created_at",
	"dead_letters": "no, listener, seq, id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id, " +
		"entity_version, bucket, created_at, attempts, max_attempts, claim_no, lane, turn, key, locked_by, failures, error, died_at",
	"parked": "no, listener, key, seq, id, namespace, topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id, " +
		"entity_version, bucket, created_at, attempts, retry_after, last_error, taken, parked_at",
	"inbox_quarantined": "consumer_group, event_id, source, tenant_id, entity_type, entity_id, version, last_version, last_event_id, " +
		"quarantined_at",
	"inbox_messages": "no, consumer_group, message_id, place, key, event_id, type, namespace, topic, version, tenant_id, status, attempts, " +
		"max_attempts, next_attempt_at, error, received_at, failed_at",
}

var rolePrefix = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,50}$`)

// RoleOptions say which roles RolesSQL creates, beside one for each of Roles. The zero value means no others.
type RoleOptions struct {
	// Prefix comes before the names; "" means the name of the schema and an underscore: outbox_producer.
	Prefix string
	// Namespaces are those whose queue topics have a dispatcher of their own: a role like outbox_dispatcher_of_mini_chat
	// runs a dispatcher of mini_chat and prunes, and sees no event of another namespace. It runs no listener.
	Namespaces []string
	// ByTenant creates the roles tenant_producer and tenant_reader. Their sessions see and enqueue events of one tenant,
	// that in the setting outboxgen.tenant_id, and those that enqueue also events without a tenant. Without the setting
	// they have no tenant.
	ByTenant bool
}

// RolesSQL returns SQL that creates a role without login for each of Roles and gives it its Grants, and the roles of o.
// Those see a part of the rows: row level security is enabled for the tables that they use, with policies that show all
// rows to the others. A role with grants of its own sees no row of these tables then.
//
// The SQL can be run any number of times, by a role that owns the tables and has CREATEROLE; it takes nothing away. Run
// it in one transaction.
func RolesSQL(schema string, o RoleOptions) (string, error) {
	if err := pgname.Check(schema); err != nil {
		return "", err
	}
	prefix := cmp.Or(o.Prefix, schema+"_")
	if !rolePrefix.MatchString(prefix) || strings.HasPrefix(prefix, "pg_") {
		return "", fmt.Errorf(
			"role prefix %q is not valid: use a lower-case letter, then up to 50 of a-z, 0-9 or _, and not pg_", prefix)
	}
	parts, err := partialRoles(schema, prefix, o)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(&b, format+"\n", args...) } // a Builder never fails
	line("-- Roles for the tables of schema %s. Give them to the roles that log in, for example:", schema)
	line("--   GRANT %sproducer, %sdispatcher TO app;", prefix, prefix)
	line("-- outboxgen doctor shows sessions of other roles only to members of pg_read_all_stats:")
	line("--   GRANT pg_read_all_stats TO %soperator, %sreader, %sviewer;", prefix, prefix, prefix)
	for _, role := range Roles() {
		writeRole(line, schema, prefix+string(role), roleComments[role], Grants(role))
	}
	for _, p := range parts {
		writeRole(line, schema, p.name, p.comment, p.grants)
	}
	writePolicies(line, schema, prefix, parts)
	return b.String(), nil
}

// writeRole writes the SQL that creates one role.
func writeRole(line func(string, ...any), schema, role, comment string, grants []Grant) {
	name := quote(role)
	line("\n-- %s", comment)
	line("DO $$")
	line("BEGIN")
	line("    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = '%s') THEN", role)
	line("        CREATE ROLE %s NOLOGIN;", name)
	line("    END IF;")
	line("EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; -- another session was faster")
	line("END")
	line("$$;")
	for _, g := range grants {
		if !g.Optional {
			line("%s", g.SQL(schema, name))
			continue
		}
		line("DO $$")
		line("BEGIN")
		line("    IF to_regclass('%s') IS NOT NULL THEN", g.On(schema))
		line("        %s", g.SQL(schema, name))
		line("    END IF;")
		line("END")
		line("$$;")
	}
}

var roleComments = map[Role]string{
	Producer:   "Enqueues. It reads no payload, and it changes and deletes nothing.",
	Dispatcher: "Runs dispatchers, listeners and the inbox, and prunes. UPDATE of one column is the privilege to lock a row.",
	Operator:   "Runs outboxgen status, dead, listener, pause, prune and doctor. In the audit it can only add, and count.",
	Eraser:     "Runs outboxgen forget: it deletes what is known of a tenant or an entity, and removes it from the audit.",
	Reader:     "Reads everything, payloads too.",
	Viewer:     "Reads everything but payloads, headers and the messages that consumers keep. It sees texts of errors, and what caused an event.",
}
