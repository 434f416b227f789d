package migrate

import (
	"context"
	"io/fs"
)

// Custom is a history of a test.
type Custom struct{ all migrations }

// Load reads a history from files.
func Load(files fs.FS) (Custom, error) {
	all, err := load(files)
	return Custom{all}, err
}

func (c Custom) Up(ctx context.Context, db DB, schema string) ([]Migration, error) {
	return c.all.up(ctx, db, schema)
}

func (c Custom) Down(ctx context.Context, db DB, schema string, to int) ([]Migration, error) {
	return c.all.down(ctx, db, schema, to)
}

func (c Custom) Status(ctx context.Context, db DB, schema string) ([]State, error) {
	return c.all.status(ctx, db, schema)
}

func (c Custom) Validate(ctx context.Context, db DB, schema string) error {
	return c.all.validate(ctx, db, schema)
}

func (c Custom) Export(schema string, format Format, first int64) ([]File, error) {
	return c.all.export(schema, format, first, 0)
}

func (c Custom) ExportAfter(schema string, format Format, first int64, version int) ([]File, error) {
	return c.all.export(schema, format, first, version)
}

// AtlasSum is the content of atlas.sum for files.
func AtlasSum(files []File) string { return atlasSum(files) }
