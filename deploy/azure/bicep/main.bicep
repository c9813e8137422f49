// Service Bus for one Headwater pipeline: namespace, topic, subscription, and an identity for the pods.
// Deploy:  az deployment group create -g RESOURCE_GROUP -f main.bicep -p namespaceName=NAME oidcIssuer=URL
targetScope = 'resourceGroup'

@description('Name of the Service Bus namespace; unique in Azure.')
param namespaceName string

@description('Standard is limited to 1,000 credits per second, about 330 events/s. Premium scales by messaging units.')
@allowed(['Standard', 'Premium'])
param tier string = 'Standard'

@description('Messaging units; Premium only.')
param messagingUnits int = 1

@description('Partitions of a Premium namespace: 1, 2 or 4. A Standard topic is partitioned by itself.')
@allowed([1, 2, 4])
param premiumPartitions int = 1

param topicName string = 'events'
param subscriptionName string = 'read-models'

@description('Must be longer than a takeover plus the events that the next leader publishes again. ISO 8601.')
param duplicateDetectionWindow string = 'PT10M'

@description('OIDC issuer URL of the Kubernetes cluster; empty: no federated credential.')
param oidcIssuer string = ''

@description('Kubernetes namespace and service account of the release.')
param kubernetesNamespace string = 'headwater'
param serviceAccountName string = 'headwater'

@description('Lets the identity run `headwater topology apply`. Pods do not need it.')
param grantOwner bool = false

param location string = resourceGroup().location

var forever = 'P10675199DT2H48M5.4775807S'
var sender = '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'
var receiver = '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'
var owner = '090c5cfd-751d-490a-894a-3ce6f1109419'
var roles = grantOwner ? [sender, receiver, owner] : [sender, receiver]

resource bus 'Microsoft.ServiceBus/namespaces@2024-01-01' = {
  name: namespaceName
  location: location
  sku: tier == 'Premium' ? { name: tier, tier: tier, capacity: messagingUnits } : { name: tier, tier: tier }
  properties: union(
    { minimumTlsVersion: '1.2', disableLocalAuth: oidcIssuer != '' },
    tier == 'Premium' ? { premiumMessagingPartitions: premiumPartitions } : {}
  )
}

resource topic 'Microsoft.ServiceBus/namespaces/topics@2024-01-01' = {
  parent: bus
  name: topicName
  properties: {
    // A Premium namespace is partitioned as a whole, so the topic must not ask for it.
    enablePartitioning: tier == 'Standard'
    requiresDuplicateDetection: true
    duplicateDetectionHistoryTimeWindow: duplicateDetectionWindow
    defaultMessageTimeToLive: forever
    autoDeleteOnIdle: forever
  }
}

resource subscription 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2024-01-01' = {
  parent: topic
  name: subscriptionName
  properties: {
    requiresSession: true
    lockDuration: 'PT1M'
    // The highest there is: a message that Service Bus dead-letters leaves a gap in its aggregate.
    maxDeliveryCount: 2000
    defaultMessageTimeToLive: forever
    autoDeleteOnIdle: forever
    deadLetteringOnMessageExpiration: true
    deadLetteringOnFilterEvaluationExceptions: true
  }
}

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: '${namespaceName}-headwater'
  location: location
}

resource federation 'Microsoft.ManagedIdentity/userAssignedIdentities/federatedIdentityCredentials@2023-01-31' = if (oidcIssuer != '') {
  parent: identity
  name: 'headwater'
  properties: {
    issuer: oidcIssuer
    subject: 'system:serviceaccount:${kubernetesNamespace}:${serviceAccountName}'
    audiences: ['api://AzureADTokenExchange']
  }
}

resource grants 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for role in roles: {
  name: guid(bus.id, identity.id, role)
  scope: bus
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', role)
    principalId: identity.properties.principalId
    principalType: 'ServicePrincipal'
  }
}]

output fullyQualifiedNamespace string = '${namespaceName}.servicebus.windows.net'
output clientId string = identity.properties.clientId
output tenantId string = identity.properties.tenantId
