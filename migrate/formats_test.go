package migrate_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
)

// twoSteps is a history with a function body, because that is what tools split wrongly.
func twoSteps(t *testing.T) migrate.Custom {
	return history(t,
		"CREATE TABLE outbox_schema.a (id int);\n", "DROP TABLE outbox_schema.a;\n",
		"DO $$ BEGIN PERFORM 1; END $$;\n", "SELECT 2;\n")
}

func TestExportFormats(t *testing.T) {
	t.Parallel()
	const head = "-- outboxgen migration 0001_step1\n\nCREATE SCHEMA IF NOT EXISTS \"app\";\n\nCREATE TABLE \"app\".a (id int);\n"
	const second = "-- outboxgen migration 0002_step2\n\nDO $$ BEGIN PERFORM 1; END $$;\n"
	for format, want := range map[migrate.Format][]migrate.File{
		migrate.Plain: {
			{Name: "0001_outbox_step1.up.sql", Content: []byte(head)},
			{Name: "0001_outbox_step1.down.sql", Content: []byte("DROP TABLE \"app\".a;\n")},
			{Name: "0002_outbox_step2.up.sql", Content: []byte(second)},
			{Name: "0002_outbox_step2.down.sql", Content: []byte("SELECT 2;\n")},
		},
		migrate.GolangMigrate: {
			{Name: "000001_outbox_step1.up.sql", Content: []byte(head)},
			{Name: "000001_outbox_step1.down.sql", Content: []byte("DROP TABLE \"app\".a;\n")},
			{Name: "000002_outbox_step2.up.sql", Content: []byte(second)},
			{Name: "000002_outbox_step2.down.sql", Content: []byte("SELECT 2;\n")},
		},
		migrate.Goose: {
			{Name: "00001_outbox_step1.sql", Content: []byte(
				"-- +goose Up\n" + head + "\n-- +goose Down\nDROP TABLE \"app\".a;\n")},
			{Name: "00002_outbox_step2.sql", Content: []byte(
				"-- +goose Up\n-- +goose StatementBegin\n" + second + "-- +goose StatementEnd\n\n-- +goose Down\nSELECT 2;\n")},
		},
		migrate.Tern: {
			{Name: "001_outbox_step1.sql", Content: []byte(
				head + "\n---- create above / drop below ----\n\nDROP TABLE \"app\".a;\n")},
			{Name: "002_outbox_step2.sql", Content: []byte(
				second + "\n---- create above / drop below ----\n\nSELECT 2;\n")},
		},
	} {
		got, err := twoSteps(t).Export("app", format, 0)
		require.NoError(t, err)
		require.Equal(t, want, got, format)
	}
}

// The sums were computed by ariga.io/atlas v1.3.0, sql/migrate.NewHashFile, over the same two files without their first lines.
func TestExportAtlasSum(t *testing.T) {
	t.Parallel()
	got, err := twoSteps(t).Export("app", migrate.Atlas, 0)
	require.NoError(t, err)
	require.Len(t, got, 3)
	require.Equal(t, "0001_outbox_step1.sql", got[0].Name)
	require.Equal(t, "0002_outbox_step2.sql", got[1].Name)
	require.Equal(t, "atlas.sum", got[2].Name)
	bare := slices.Clone(got[:2])
	for i, f := range bare {
		_, content, _ := strings.Cut(string(f.Content), "\n\n")
		bare[i].Content = []byte(content)
	}
	require.Equal(t, `h1:hF83hFG31OZcMn3lqC0FdMbpepVcCLFyqFjQ4Nw6yko=
0001_outbox_step1.sql h1:VLWMvF1wqnMTmu/vOAeYTAc2y7+qhMYbumihtcqw2+M=
0002_outbox_step2.sql h1:J/5cAlvw8+3tboAdS4i9Kj5nQkGmo+7v4airTyahunI=
`, migrate.AtlasSum(bare))
	require.Equal(t, migrate.AtlasSum(got[:2]), string(got[2].Content))
}

// TestExportAfterReturnsWhatIsNew: the files of the migrations above a version, numbered by version or from first, without
// the schema and the sums of atlas.
func TestExportAfterReturnsWhatIsNew(t *testing.T) {
	t.Parallel()
	for _, format := range migrate.Formats() {
		all, err := twoSteps(t).Export("app", format, 0)
		require.NoError(t, err)
		after, err := twoSteps(t).ExportAfter("app", format, 0, 1)
		require.NoError(t, err)
		var want []migrate.File
		for _, f := range all {
			if strings.Contains(f.Name, "step2") {
				want = append(want, f)
			}
		}
		require.Equal(t, want, after, format)
		moved, err := twoSteps(t).ExportAfter("app", format, 41, 1)
		require.NoError(t, err)
		require.Contains(t, moved[0].Name, "41_outbox_step2")
		require.Equal(t, after[0].Content, moved[0].Content)
		nothing, err := twoSteps(t).ExportAfter("app", format, 0, 2)
		require.NoError(t, err)
		require.Empty(t, nothing)
		whole, err := twoSteps(t).ExportAfter("app", format, 0, 0)
		require.NoError(t, err)
		require.Equal(t, all, whole)
	}
	_, err := twoSteps(t).ExportAfter("app", migrate.Plain, 0, 3)
	require.ErrorContains(t, err, "after version 3: this version of outboxgen has only versions 1 to 2")
	_, err = twoSteps(t).ExportAfter("app", migrate.Plain, 0, -1)
	require.EqualError(t, err, "export migrations: after version -1: must not be negative")
}

func TestExportNumbersFromFirst(t *testing.T) {
	t.Parallel()
	got, err := twoSteps(t).Export("app", migrate.Tern, 41)
	require.NoError(t, err)
	require.Equal(t, []string{"041_outbox_step1.sql", "042_outbox_step2.sql"}, []string{got[0].Name, got[1].Name})
	got, err = twoSteps(t).Export("app", migrate.GolangMigrate, 20261121093000)
	require.NoError(t, err)
	require.Equal(t, "20261121093000_outbox_step1.up.sql", got[0].Name)
	_, err = twoSteps(t).Export("app", migrate.Plain, -1)
	require.EqualError(t, err, "export migrations: first number -1: must not be negative")
	_, err = twoSteps(t).Export("app", "flyway", 0)
	require.EqualError(t, err, `export migrations: unknown format "flyway": use one of plain, goose, tern, golang-migrate, atlas`)
}

// The exported files create the tables that Up creates, and drop them again.
func TestExportedSQLRuns(t *testing.T) {
	t.Parallel()
	ours, theirs := pgtest.Pool(t, pgtest.Empty(t)), pgtest.Pool(t, pgtest.Empty(t))
	_, err := migrate.Up(t.Context(), ours, "outbox")
	require.NoError(t, err)
	_, err = ours.Exec(t.Context(), "DROP TABLE outbox.schema_migrations")
	require.NoError(t, err)

	files, err := migrate.Export("outbox", migrate.Plain, 0)
	require.NoError(t, err)
	for _, f := range files {
		if strings.HasSuffix(f.Name, ".up.sql") {
			_, err := theirs.Exec(t.Context(), string(f.Content))
			require.NoError(t, err, f.Name)
		}
	}
	require.Equal(t, dump(t, ours), dump(t, theirs))
	for i := len(files) - 1; i >= 0; i-- {
		if strings.HasSuffix(files[i].Name, ".down.sql") {
			_, err := theirs.Exec(t.Context(), string(files[i].Content))
			require.NoError(t, err, files[i].Name)
		}
	}
	require.Zero(t, tables(t, theirs))
}

// The marker is always a whole identifier, and the files contain no text that tern would take for a template.
func TestReleasedFiles(t *testing.T) {
	t.Parallel()
	require.NotEmpty(t, migrate.All())
	glued := regexp.MustCompile(`outbox_schema\w|\woutbox_schema|\{\{`)
	files, err := migrate.Export("outbox_schema", migrate.Plain, 0)
	require.NoError(t, err)
	for _, f := range files {
		require.NotRegexp(t, glued, string(f.Content), f.Name)
	}
	for i, m := range migrate.All() {
		require.Equal(t, i+1, m.Version)
		require.Regexp(t, `^[0-9a-f]{64}$`, m.Checksum)
	}
	require.Len(t, migrate.Hash(), 16)
}
