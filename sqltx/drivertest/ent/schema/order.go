// Package schema describes the tables of the ent client.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/dialect/entsql"
	"entgo.io/ent/schema"
	"entgo.io/ent/schema/field"
	"github.com/google/uuid"
)

// Order is a row of the table orders.
type Order struct{ ent.Schema }

// Annotations name the table.
func (Order) Annotations() []schema.Annotation { return []schema.Annotation{entsql.Table("orders")} }

// Fields are the columns.
func (Order) Fields() []ent.Field { return []ent.Field{field.UUID("id", uuid.UUID{})} }
