# Service Bus for one Headwater pipeline: namespace, topic, subscription, and an identity for the pods.
# Apply:  terraform init && terraform apply -var resource_group=… -var namespace_name=… -var oidc_issuer=…
terraform {
  required_version = ">= 1.6"
  required_providers {
    azurerm = { source = "hashicorp/azurerm", version = "~> 4.0" }
  }
}

provider "azurerm" {
  features {}
}

variable "resource_group" { type = string }

variable "namespace_name" {
  type        = string
  description = "Name of the Service Bus namespace; unique in Azure."
}

variable "tier" {
  type        = string
  default     = "Standard"
  description = "Standard is limited to 1,000 credits per second, about 330 events/s. Premium scales by messaging units."
  validation {
    condition     = contains(["Standard", "Premium"], var.tier)
    error_message = "Standard or Premium: Basic has neither topics nor sessions."
  }
}

variable "messaging_units" {
  type    = number
  default = 1
}

variable "premium_partitions" {
  type    = number
  default = 1
}

variable "topic_name" {
  type    = string
  default = "events"
}

variable "subscription_name" {
  type    = string
  default = "read-models"
}

variable "duplicate_detection_window" {
  type        = string
  default     = "PT10M"
  description = "Must be longer than a takeover plus the events that the next leader publishes again."
}

variable "oidc_issuer" {
  type        = string
  default     = ""
  description = "OIDC issuer URL of the Kubernetes cluster; empty: no federated credential."
}

variable "kubernetes_namespace" {
  type    = string
  default = "headwater"
}

variable "service_account" {
  type    = string
  default = "headwater"
}

variable "grant_owner" {
  type        = bool
  default     = false
  description = "Lets the identity run `headwater topology apply`. Pods do not need it."
}

locals {
  forever = "P10675199DT2H48M5.4775807S"
  premium = var.tier == "Premium"
  roles = concat(
    ["Azure Service Bus Data Sender", "Azure Service Bus Data Receiver"],
    var.grant_owner ? ["Azure Service Bus Data Owner"] : [],
  )
}

data "azurerm_resource_group" "this" {
  name = var.resource_group
}

resource "azurerm_servicebus_namespace" "this" {
  name                         = var.namespace_name
  resource_group_name          = data.azurerm_resource_group.this.name
  location                     = data.azurerm_resource_group.this.location
  sku                          = var.tier
  capacity                     = local.premium ? var.messaging_units : 0
  premium_messaging_partitions = local.premium ? var.premium_partitions : 0
  minimum_tls_version          = "1.2"
  local_auth_enabled           = var.oidc_issuer == ""
}

resource "azurerm_servicebus_topic" "events" {
  name         = var.topic_name
  namespace_id = azurerm_servicebus_namespace.this.id
  # A Premium namespace is partitioned as a whole, so the topic must not ask for it.
  partitioning_enabled                    = !local.premium
  requires_duplicate_detection            = true
  duplicate_detection_history_time_window = var.duplicate_detection_window
  default_message_ttl                     = local.forever
  auto_delete_on_idle                     = local.forever
}

resource "azurerm_servicebus_subscription" "read_models" {
  name             = var.subscription_name
  topic_id         = azurerm_servicebus_topic.events.id
  requires_session = true
  lock_duration    = "PT1M"
  # The highest there is: a message that Service Bus dead-letters leaves a gap in its aggregate.
  max_delivery_count                        = 2000
  default_message_ttl                       = local.forever
  auto_delete_on_idle                       = local.forever
  dead_lettering_on_message_expiration      = true
  dead_lettering_on_filter_evaluation_error = true
}

resource "azurerm_user_assigned_identity" "headwater" {
  name                = "${var.namespace_name}-headwater"
  resource_group_name = data.azurerm_resource_group.this.name
  location            = data.azurerm_resource_group.this.location
}

resource "azurerm_federated_identity_credential" "headwater" {
  count               = var.oidc_issuer == "" ? 0 : 1
  name                = "headwater"
  resource_group_name = data.azurerm_resource_group.this.name
  parent_id           = azurerm_user_assigned_identity.headwater.id
  issuer              = var.oidc_issuer
  subject             = "system:serviceaccount:${var.kubernetes_namespace}:${var.service_account}"
  audience            = ["api://AzureADTokenExchange"]
}

resource "azurerm_role_assignment" "headwater" {
  for_each             = toset(local.roles)
  scope                = azurerm_servicebus_namespace.this.id
  role_definition_name = each.value
  principal_id         = azurerm_user_assigned_identity.headwater.principal_id
}

output "fully_qualified_namespace" {
  value = "${var.namespace_name}.servicebus.windows.net"
}

output "client_id" {
  value = azurerm_user_assigned_identity.headwater.client_id
}

output "tenant_id" {
  value = azurerm_user_assigned_identity.headwater.tenant_id
}
