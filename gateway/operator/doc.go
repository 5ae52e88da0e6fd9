// Package operator is the interface for operators: JSON over HTTP about the tasks, replicas and upstreams of the
// deployment, and the console page that shows them. docs/operator.md describes it, and openapi.json has each path
// and field.
//
// It knows who may ask and how an answer is spelt, and gets what it tells from a [Source]. It is the same at every
// replica: nothing of an answer is known to this process alone.
package operator
