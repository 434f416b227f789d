package contact_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/contacts/contact"
	"github.com/outboxgen/outboxgen/examples/contacts/database"
	"github.com/outboxgen/outboxgen/examples/contacts/events"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
)

func TestEachLinkEnqueuesAnEvent(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	tenant := uuid.New()
	ada := create(t, pool, tenant, "Ada")

	first := mustLink(t, pool, email(tenant, ada, "Ada@Example.com"))
	second := mustLink(t, pool, externalID(tenant, ada, "crm-2"))

	rows, err := pool.Query(t.Context(), `
		SELECT payload ->> 'identity_id', payload ->> 'type', payload ->> 'value', entity_id, entity_version
		FROM outbox.events
		WHERE namespace = 'contacts' AND topic = 'identity_linked' AND tenant_id = $1
		ORDER BY entity_version`, tenant)
	require.NoError(t, err)
	type event struct {
		Identity      uuid.UUID
		Type, Value   string
		Entity        string
		EntityVersion int64
	}
	events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[event])
	require.NoError(t, err)
	require.Equal(t, []event{
		{Identity: first, Type: "email", Value: "Ada@Example.com", Entity: ada.String(), EntityVersion: 1},
		{Identity: second, Type: "external_id", Value: "crm-2", Entity: ada.String(), EntityVersion: 2},
	}, events)
}

// TestOneIdentityOfAnyTypeIsEnough: a contact may have nothing but an e-mail, or nothing but a phone number.
func TestOneIdentityOfAnyTypeIsEnough(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	tenant := uuid.New()
	mustLink(t, pool, externalID(tenant, create(t, pool, tenant, "Ada"), "4711"))
	mustLink(t, pool, email(tenant, create(t, pool, tenant, "Bob"), "bob@example.com"))
	mustLink(t, pool, phone(tenant, create(t, pool, tenant, "Cleo"), "+4711000"))
	requireCounts(t, pool, 3, 3)
}

// TestLinkNamesWhoHasTheIdentity: a value is taken within its tenant and type, however it is written.
func TestLinkNamesWhoHasTheIdentity(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	tenant := uuid.New()
	ada, bob := create(t, pool, tenant, "Ada"), create(t, pool, tenant, "Bob")
	mustLink(t, pool, externalID(tenant, ada, "crm-1"))
	mustLink(t, pool, email(tenant, ada, "Ada@Example.com"))
	mustLink(t, pool, phone(tenant, ada, "+49 30 1234"))
	for _, taken := range []contact.Identity{
		externalID(tenant, bob, "crm-1"), email(tenant, bob, "aDA@eXAMPLE.COM"), phone(tenant, bob, "+49 (30) 12-34"), phone(tenant, ada, "+49301234"),
	} {
		_, err := link(t.Context(), pool, taken)
		require.ErrorIs(t, err, contact.ErrConflict)
		var conflict *contact.ConflictError
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, contact.ConflictError{Type: taken.Type, ContactID: ada}, *conflict)
		require.EqualError(t, err, fmt.Sprintf("link identity: %s is linked to contact %s already", taken.Type, ada))
	}
	requireCounts(t, pool, 3, 3)
	mustLink(t, pool, externalID(tenant, bob, "CRM-1"))
	mustLink(t, pool, externalID(tenant, bob, "ada@example.com"))
	mustLink(t, pool, externalID(tenant, bob, "+49301234"))
}

func TestLinkKeepsTenantsApart(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	for range 2 {
		tenant := uuid.New()
		ada := create(t, pool, tenant, "Ada")
		mustLink(t, pool, externalID(tenant, ada, "crm-1"))
		mustLink(t, pool, email(tenant, ada, "ada@example.com"))
	}
	requireCounts(t, pool, 4, 4)
}

func TestLinkNeedsAContactOfTheTenant(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	ada := create(t, pool, uuid.New(), "Ada")
	_, err := link(t.Context(), pool, externalID(uuid.New(), ada, "crm-1"))
	require.ErrorIs(t, err, contact.ErrNotFound)
	requireCounts(t, pool, 0, 0)
}

func TestLinkInvalidLeavesNothing(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	tenant := uuid.New()
	ada := create(t, pool, tenant, "Ada")
	for want, invalid := range map[error]contact.Identity{
		contact.ErrInvalid:       email(tenant, ada, "secret at example"),
		outbox.ErrPayloadInvalid: externalID(tenant, ada, strings.Repeat("secret", 50)),
	} {
		_, err := link(t.Context(), pool, invalid)
		require.ErrorIs(t, err, want)
		require.NotContains(t, err.Error(), "secret")
	}
	_, err := link(t.Context(), pool, phone(tenant, ada, "030 secret"))
	require.EqualError(t, err, "link identity: phone is not valid: use a plus, the country's code and digits")
	_, err = link(t.Context(), pool, contact.Identity{TenantID: tenant, ContactID: ada, Type: "fax", Value: "1"})
	require.Error(t, err)
	requireCounts(t, pool, 0, 0)
}

// TestConcurrentLinksOfOneEmail links the same e-mail in different cases to different contacts, so only the index
// can find the conflict.
func TestConcurrentLinksOfOneEmail(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	tenant := uuid.New()
	emails := []string{"ada@example.com", "Ada@example.com", "ADA@example.com", "ada@EXAMPLE.com", "ada@Example.Com", "aDa@example.com"}
	errs := make(chan error)
	for _, address := range emails {
		i := email(tenant, create(t, pool, tenant, "Ada"), address)
		go func() {
			_, err := link(t.Context(), pool, i)
			errs <- err
		}()
	}
	linked := 0
	for range emails {
		err := <-errs
		if err == nil {
			linked++
			continue
		}
		var conflict *contact.ConflictError
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, events.IdentityTypeEmail, conflict.Type)
	}
	require.Equal(t, 1, linked)
	requireCounts(t, pool, 1, 1)
}

// TestIndexRefusesWhatIsWrittenByHand inserts rows without Link.
func TestIndexRefusesWhatIsWrittenByHand(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	tenant := uuid.New()
	ada := create(t, pool, tenant, "Ada")
	mustLink(t, pool, email(tenant, ada, "ada@example.com"))
	_, err := pool.Exec(t.Context(), `
		INSERT INTO crm.identities (id, tenant_id, contact_id, type, value)
		VALUES (gen_random_uuid(), $1, $2, 'email', 'ADA@EXAMPLE.COM')`, tenant, ada)
	var refused *pgconn.PgError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "identities_key", refused.ConstraintName)
}

func externalID(tenant, owner uuid.UUID, value string) contact.Identity {
	return contact.Identity{TenantID: tenant, ContactID: owner, Type: events.IdentityTypeExternalID, Value: value}
}

func email(tenant, owner uuid.UUID, value string) contact.Identity {
	return contact.Identity{TenantID: tenant, ContactID: owner, Type: events.IdentityTypeEmail, Value: value}
}

func phone(tenant, owner uuid.UUID, value string) contact.Identity {
	return contact.Identity{TenantID: tenant, ContactID: owner, Type: events.IdentityTypePhone, Value: value}
}

func contactsDatabase(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	return pool
}

func create(t *testing.T, pool *pgxpool.Pool, tenant uuid.UUID, name string) (id uuid.UUID) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
		id, err = contact.Create(t.Context(), tx, tenant, name)
		return err
	}))
	return id
}

func link(ctx context.Context, pool *pgxpool.Pool, i contact.Identity) (id uuid.UUID, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		id, err = contact.Link(ctx, tx, i)
		return err
	})
	return id, err
}

func mustLink(t *testing.T, pool *pgxpool.Pool, i contact.Identity) uuid.UUID {
	t.Helper()
	id, err := link(t.Context(), pool, i)
	require.NoError(t, err)
	return id
}

func requireCounts(t *testing.T, pool *pgxpool.Pool, identities, events int) {
	t.Helper()
	var gotIdentities, gotEvents int
	require.NoError(t, pool.QueryRow(t.Context(),
		"SELECT (SELECT count(*) FROM crm.identities), (SELECT count(*) FROM outbox.events)").Scan(&gotIdentities, &gotEvents))
	require.Equal(t, identities, gotIdentities, "identities")
	require.Equal(t, events, gotEvents, "events")
}
