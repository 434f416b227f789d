// Package exporttest has only tests. They check what outboxgen exports with the tools that others use: a validator of
// JSON Schema, and, if npm can install them, Ajv and the parser of the AsyncAPI project. It is a separate module
// because it needs a validator.
package exporttest
