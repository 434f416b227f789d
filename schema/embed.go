// Package schema holds the DDL of the outbox, one numbered pair of files a migration. The files write
// the schema's name as the marker outbox_schema, which package migrate replaces. Released files never
// change; a change is a new number.
package schema

import "embed"

// Files holds NNNN_name.up.sql and NNNN_name.down.sql.
//
//go:embed *.sql
var Files embed.FS
