package contact_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/contacts/contact"
	"github.com/outboxgen/outboxgen/examples/contacts/database"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
)

func TestEachLinkEnqueuesAnEvent(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	tenant := uuid.New()
	ada := create(t, pool, tenant, "Ada")

	first := mustLink(t, pool, contact.Identity{TenantID: tenant, ContactID: ada, ExternalID: "crm-1", Email: "Ada@Example.com"})
	second := mustLink(t, pool, contact.Identity{TenantID: tenant, ContactID: ada, ExternalID: "crm-2"})

	rows, err := pool.Query(t.Context(), `
		SELECT payload ->> 'identity_id', payload ->> 'email', entity_id, entity_version
		FROM outbox.events
		WHERE namespace = 'contacts' AND topic = 'identity_linked' AND tenant_id = $1
		ORDER BY entity_version`, tenant)
	require.NoError(t, err)
	type event struct {
		Identity      uuid.UUID
		Email         *string
		Entity        string
		EntityVersion int64
	}
	events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[event])
	require.NoError(t, err)
	email := "Ada@Example.com"
	require.Equal(t, []event{
		{Identity: first, Email: &email, Entity: ada.String(), EntityVersion: 1},
		{Identity: second, Entity: ada.String(), EntityVersion: 2},
	}, events)
}

func TestLinkNamesTheFieldInConflict(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	tenant := uuid.New()
	ada, bob := create(t, pool, tenant, "Ada"), create(t, pool, tenant, "Bob")
	mustLink(t, pool, contact.Identity{TenantID: tenant, ContactID: ada, ExternalID: "crm-1", Email: "Ada@Example.com"})
	mustLink(t, pool, contact.Identity{TenantID: tenant, ContactID: bob, ExternalID: "crm-2", Email: "bob@example.com"})

	for name, c := range map[string]struct {
		externalID, email string
		field             contact.Field
		owner             uuid.UUID
		text              string
	}{
		"external id": {"crm-1", "new@example.com", contact.ExternalID, ada, "link identity: external id is linked to contact " + ada.String() + " already"},
		"e-mail":      {"crm-3", "bob@example.com", contact.Email, bob, "link identity: e-mail is linked to contact " + bob.String() + " already"},
		"case":        {"crm-3", "aDA@eXAMPLE.COM", contact.Email, ada, "link identity: e-mail is linked to contact " + ada.String() + " already"},
		"both":        {"crm-2", "ada@example.com", contact.ExternalID, bob, "link identity: external id is linked to contact " + bob.String() + " already"},
	} {
		_, err := link(t.Context(), pool, contact.Identity{TenantID: tenant, ContactID: bob, ExternalID: c.externalID, Email: c.email})
		require.ErrorIs(t, err, contact.ErrConflict, name)
		var conflict *contact.ConflictError
		require.ErrorAs(t, err, &conflict, name)
		require.Equal(t, contact.ConflictError{Field: c.field, ContactID: c.owner}, *conflict, name)
		require.EqualError(t, err, c.text, name)
	}
	requireCounts(t, pool, 2, 2)
}

func TestLinkKeepsTenantsApart(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	for range 2 {
		tenant := uuid.New()
		mustLink(t, pool, contact.Identity{
			TenantID: tenant, ContactID: create(t, pool, tenant, "Ada"), ExternalID: "crm-1", Email: "ada@example.com",
		})
	}
	requireCounts(t, pool, 2, 2)
}

func TestLinkNeedsAContactOfTheTenant(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	ada := create(t, pool, uuid.New(), "Ada")
	_, err := link(t.Context(), pool, contact.Identity{TenantID: uuid.New(), ContactID: ada, ExternalID: "crm-1"})
	require.ErrorIs(t, err, contact.ErrNotFound)
	requireCounts(t, pool, 0, 0)
}

func TestLinkInvalidLeavesNothing(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	tenant := uuid.New()
	ada := create(t, pool, tenant, "Ada")
	_, err := link(t.Context(), pool, contact.Identity{TenantID: tenant, ContactID: ada, ExternalID: "crm-1", Email: "secret at example"})
	require.ErrorIs(t, err, outbox.ErrPayloadInvalid)
	require.NotContains(t, err.Error(), "secret")
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
	for _, email := range emails {
		i := contact.Identity{TenantID: tenant, ContactID: create(t, pool, tenant, "Ada"), ExternalID: uuid.NewString(), Email: email}
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
		require.Equal(t, contact.Email, conflict.Field)
	}
	require.Equal(t, 1, linked)
	requireCounts(t, pool, 1, 1)
}

// TestIndexesRefuseWhatIsWrittenByHand inserts rows without Link.
func TestIndexesRefuseWhatIsWrittenByHand(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	tenant := uuid.New()
	ada := create(t, pool, tenant, "Ada")
	mustLink(t, pool, contact.Identity{TenantID: tenant, ContactID: ada, ExternalID: "crm-1", Email: "ada@example.com"})
	for index, values := range map[string][2]string{
		"identities_external_id_key": {"crm-1", "new@example.com"},
		"identities_email_key":       {"crm-2", strings.ToUpper("ada@example.com")},
	} {
		_, err := pool.Exec(t.Context(), `
			INSERT INTO crm.identities (id, tenant_id, contact_id, external_id, email)
			VALUES (gen_random_uuid(), $1, $2, $3, $4)`, tenant, ada, values[0], values[1])
		var refused *pgconn.PgError
		require.ErrorAs(t, err, &refused, index)
		require.Equal(t, index, refused.ConstraintName)
	}
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
