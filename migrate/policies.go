package migrate

import (
	"fmt"
	"maps"
	"slices"

	"github.com/outboxgen/outboxgen/internal/postgres/pgname"
)

// partialRole sees a part of the rows.
type partialRole struct {
	name, comment string
	grants        []Grant
	policies      map[string]policy // by table
}

// policy is the condition of the rows that a role sees and writes.
type policy string

// partialRoles returns the roles of o.
func partialRoles(schema, prefix string, o RoleOptions) (parts []partialRole, err error) {
	for _, namespace := range slices.Compact(slices.Sorted(slices.Values(o.Namespaces))) {
		if !pgname.IsName(namespace) {
			return nil, fmt.Errorf("namespace %q is not a name like mini_chat", namespace)
		}
		p := dispatcherOf(namespace)
		p.name = prefix + "dispatcher_of_" + namespace
		parts = append(parts, p)
	}
	if o.ByTenant {
		producer, reader := tenantProducer(), tenantReader(schema)
		producer.name, reader.name = prefix+"tenant_producer", prefix+"tenant_reader"
		parts = append(parts, producer, reader)
	}
	const longest = 63 // PostgreSQL cuts longer names
	for _, p := range parts {
		if len(p.name) > longest {
			return nil, fmt.Errorf("the name of role %s has %d bytes of at most %d: use a shorter prefix", p.name, len(p.name), longest)
		}
	}
	return parts, nil
}

// dispatcherOf returns the role that runs a dispatcher of one namespace.
func dispatcherOf(namespace string) partialRole {
	p := partialRole{
		comment: "Runs a dispatcher of the namespace " + namespace + ", and prunes its queue topics. It sees no event of another namespace.",
		grants: []Grant{
			{Kind: "SCHEMA", Privileges: []string{"USAGE"}},
			table("events", "SELECT", "UPDATE (id)", "DELETE"),
			table("queue", "SELECT", "UPDATE", "DELETE"),
			table("delivered", "SELECT", "INSERT", "UPDATE (id)", "DELETE"),
			table("dead_letters", "SELECT", "INSERT", "UPDATE (id)", "DELETE"),
			table("processes", "SELECT", "INSERT", "UPDATE", "DELETE"),
			table("pauses", "SELECT"),
			table("limits", "SELECT", "INSERT", "UPDATE", "DELETE"),
			table("limits_in_force", "SELECT"),
			table("limit_usage", "SELECT", "INSERT", "UPDATE", "DELETE"),
			function(claimTurnsFunction), function(laneFunction),
			{Kind: "SEQUENCE", Object: "dead_letters_no_seq", Privileges: []string{"USAGE"}},
		},
		policies: map[string]policy{
			"processes": policy("kind = 'dispatcher' AND name = '" + namespace + "'"),
			"pauses":    policy("namespace IN ('', '" + namespace + "')"),
		},
	}
	for _, name := range []string{"events", "queue", "delivered", "limits", "limit_usage"} {
		p.policies[name] = policy("namespace = '" + namespace + "'")
	}
	p.policies["dead_letters"] = policy("namespace = '" + namespace + "' AND listener IS NULL")
	return p
}

// ownTenant is a scalar subquery, so that a statement reads the setting once and not for each row.
const ownTenant = "tenant_id = (SELECT nullif(current_setting('outboxgen.tenant_id', true), '')::uuid)"

func tenantProducer() partialRole {
	p := partialRole{
		comment: "Enqueues for the tenant in the setting outboxgen.tenant_id, and events without a tenant. It reads no payload.",
		grants:  Grants(Producer), policies: make(map[string]policy),
	}
	for _, name := range []string{"events", "queue", "log"} {
		p.policies[name] = policy("tenant_id IS NULL OR " + ownTenant)
	}
	return p
}

func tenantReader(schema string) partialRole {
	p := partialRole{
		comment: "Reads the events of the tenant in the setting outboxgen.tenant_id, payloads too.",
		grants:  []Grant{{Kind: "SCHEMA", Privileges: []string{"USAGE"}}}, policies: make(map[string]policy),
	}
	for _, name := range []string{"events", "queue", "log", "dead_letters", "parked"} {
		p.grants = append(p.grants, table(name, "SELECT"))
		p.policies[name] = policy(ownTenant)
	}
	p.grants = append(p.grants, table("delivered", "SELECT"))
	p.policies["delivered"] = policy("EXISTS (SELECT FROM " + quote(schema) + ".events AS e WHERE e.id = delivered.id)")
	return p
}

// writePolicies writes the SQL that enables row level security for the tables of parts, with policies for all roles.
func writePolicies(line func(string, ...any), schema, prefix string, parts []partialRole) {
	tables := make(map[string]bool)
	for _, p := range parts {
		for name := range p.policies {
			tables[name] = true
		}
	}
	if len(tables) == 0 {
		return
	}
	line("\n-- Policies. Roles that are not named here, except the owner of the tables, see no rows.")
	everybody := ""
	for i, role := range Roles() {
		if i > 0 {
			everybody += ", "
		}
		everybody += quote(prefix + string(role))
	}
	write := func(name, table, roles string, p policy) {
		line("DROP POLICY IF EXISTS %s ON %s.%s;", name, quote(schema), table)
		line("CREATE POLICY %s ON %s.%s TO %s USING (%s) WITH CHECK (%s);", name, quote(schema), table, roles, p, p)
	}
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		write(quote("outboxgen_all"), table, everybody, policy("true"))
		for _, p := range parts {
			if part, ok := p.policies[table]; ok {
				write(quote(p.name), table, quote(p.name), part)
			}
		}
		line("ALTER TABLE %s.%s ENABLE ROW LEVEL SECURITY;", quote(schema), table)
	}
}
