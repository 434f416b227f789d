// Package schema has the DDL of the outbox, one numbered pair of files per migration. The files use the marker
// outbox_schema for the schema's name, and package migrate replaces it. Released files never change: a change gets a
// new number.
package schema

import "embed"

// Files contains NNNN_name.up.sql and NNNN_name.down.sql.
//
//go:embed *.sql
var Files embed.FS
