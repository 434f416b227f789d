package check

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
)

// TestSQLBlocks runs the SQL of each page, in one transaction on a migrated database. What a block needs beforehand
// stands in its sql comment, as SQL, or as @ and the path of a file; @roles are
// those of outboxgen migrate get --roles. Variables of psql are a UUID.
func TestSQLBlocks(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	variable := regexp.MustCompile(`:'\w+'`)
	n := 0
	for _, page := range pages(t) {
		tx := pgtest.Begin(t, pool, pgx.TxOptions{})
		for _, b := range read(t, page) {
			if _, skipped := b.comments["not run"]; skipped || b.language != "sql" {
				continue
			}
			n++
			before := b.comments["sql"]
			if rest, ok := strings.CutPrefix(before, "@roles"); ok {
				roles, err := migrate.RolesSQL("outbox", migrate.RoleOptions{Namespaces: []string{"mini_chat"}, ByTenant: true})
				require.NoError(t, err)
				before = roles + rest
			} else if path, ok := strings.CutPrefix(before, "@"); ok {
				file, err := os.ReadFile(filepath.Join(root, path))
				require.NoError(t, err, b)
				before = string(file)
			}
			for _, text := range []string{before, b.text} {
				_, err := tx.Conn().PgConn().Exec(t.Context(), variable.ReplaceAllString(text, "'01890a5d-ac96-774b-bcce-b302099a8057'")).ReadAll()
				require.NoError(t, err, "%s:\n%s", b, text)
			}
		}
		require.NoError(t, tx.Rollback(t.Context()))
	}
	require.Greater(t, n, 5)
}
