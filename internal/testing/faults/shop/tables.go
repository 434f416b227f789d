package shop

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Tables are those of the shop. The row of an item gives its events their numbers, in the order of the commits, because a
// transaction locks it. Rows of placed are the truth about what was committed. No effect is unique: it is up to what is
// tested that there is one.
const Tables = `
	CREATE TABLE items (item text PRIMARY KEY, n bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50);
	CREATE TABLE placed (
		event uuid NOT NULL, topic text NOT NULL, item text NOT NULL, n bigint NOT NULL, mood text NOT NULL, not_before timestamptz
	);
	CREATE TABLE effects (
		no bigint GENERATED ALWAYS AS IDENTITY, handler text NOT NULL, event uuid NOT NULL, topic text NOT NULL, item text NOT NULL, n bigint NOT NULL
	);`

// EffectTables are those of the consumers, in their own database.
const EffectTables = `
	CREATE TABLE effects (
		no bigint GENERATED ALWAYS AS IDENTITY, handler text NOT NULL, event uuid NOT NULL, topic text NOT NULL, item text NOT NULL, n bigint NOT NULL
	);`

const insertEffect = "INSERT INTO effects (handler, event, topic, item, n) VALUES ($1, $2, $3, $4, $5)"

const tenants = 5

// itemOf names an item and says whose it is.
func itemOf(i int) (item string, tenant uuid.UUID) {
	return fmt.Sprintf("item-%d", i), uuid.UUID{15: byte(1 + i%tenants)}
}

// CreateItems creates the rows of items.
func CreateItems(ctx context.Context, pool *pgxpool.Pool, n int) error {
	for i := range n {
		item, _ := itemOf(i)
		if _, err := pool.Exec(ctx, "INSERT INTO items (item) VALUES ($1)", item); err != nil {
			return fmt.Errorf("create items: %w", err)
		}
	}
	return nil
}

// TenantOf returns whose an item is.
func TenantOf(item string) uuid.UUID {
	var i int
	_, _ = fmt.Sscanf(item, "item-%d", &i)
	return Tenant(i)
}

// Tenant returns whose item number i is.
func Tenant(i int) uuid.UUID {
	_, tenant := itemOf(i)
	return tenant
}
