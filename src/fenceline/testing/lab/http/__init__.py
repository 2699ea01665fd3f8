"""The laboratory by HTTP, for tests in any language: `fenceline lab`.

| Module | Owns |
|---|---|
| `server` | the address, the signals, and the end of everything |
| `app` | what the service consists of |
| `page` | the page for people, from the OpenAPI document |
| `clusters`, `injection` | the routes: of clusters, and of their faults, situations and waits |
| `guard` | requests that a web page of another origin has sent |
| `ended` | answers of requests whose cluster ends meanwhile |
| `answers` | errors as JSON |
| `operations` | the routes and models that follow from the signatures of the Python API |
| `leases` | clusters that end when their client has |
| `json_values` | values of the Python API as JSON, and back |

Nothing happens here that the Python API does not do; predicates and functions (`when`, `produce`) have no form in JSON.
"""
